//! What this machine is called.

/// The name of the host, or `localhost` where the system does not tell.
pub(crate) fn host_name() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    if name.is_empty() { "localhost".into() } else { name.to_string_lossy().into_owned() }
}

/// The processor's model, as the kernel names it, or its architecture.
pub(crate) fn cpu_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models = info.lines().filter_map(|line| line.split_once(':'));
    models
        .filter(|(key, _)| key.trim() == "model name")
        .map(|(_, model)| model.trim().to_owned())
        .find(|model| !model.is_empty())
        .unwrap_or_else(|| std::env::consts::ARCH.into())
}
