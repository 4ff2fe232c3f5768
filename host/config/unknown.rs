//! Variables that look like settings and are none: misspelt ones, of which nothing else would be said.
//!
//! Of the names that begin with `FERROCCL_`, all that nothing here reads. Of those that begin with `NCCL_`, only what is
//! almost the name of a setting. The rest is NCCL's own, or of a plugin: a line of the log says that it is not read.

use std::fmt;
use std::sync::Once;

use super::KNOBS;
use crate::log::targets::ENV;

/// A variable of the environment that nothing reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVariable {
    /// Its name.
    pub name: String,
    /// The setting whose name is the most like it, if one is.
    pub nearest: Option<&'static str>,
}

impl fmt::Display for UnknownVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is set, which nothing reads", self.name)?;
        match self.nearest {
            Some(nearest) => write!(f, ": is {nearest} meant?"),
            None => f.write_str(": `ferroccl env` lists the settings"),
        }
    }
}

/// What is read elsewhere: by launchers, by the command and the build.
const READ_ELSEWHERE: &[&str] = &[
    "FERROCCL_RANK",
    "FERROCCL_WORLD_SIZE",
    "FERROCCL_LOCAL_RANK",
    "FERROCCL_LOCAL_SIZE",
    "FERROCCL_UNIQUE_ID",
    "FERROCCL_CUDA_LIBRARY",
    "FERROCCL_PTX",
    "FERROCCL_PTXAS",
    "FERROCCL_PTX_TYPES",
    "FERROCCL_DEVICE_RUSTC",
    "FERROCCL_BIN",
    // Tests, benches and fuzzers.
    "FERROCCL_DRAWING",
    "FERROCCL_SEED",
    "FERROCCL_CHAOS_RUNS",
    "FERROCCL_SKIPPED",
    "FERROCCL_NCCL_HEADER",
    "FERROCCL_NCCL_PTX",
    "FERROCCL_IN_VM",
    "FERROCCL_TOPOLOGY_SEEDS",
    "FERROCCL_GPU",
    "FERROCCL_GPU_SCENARIO",
];

/// Beginnings of names that tests and tools of this repository have to themselves.
const PREFIXES: &[&str] = &["FERROCCL_TEST_", "FERROCCL_VM_", "FERROCCL_FUZZ_", "FERROCCL_BENCH_"];

/// NCCL's documented settings that are like one of ours, and another thing.
const NCCLS: &[&str] = &[
    "NCCL_IB_ECE_ENABLE",
    "NCCL_IB_FIFO_TC",
    "NCCL_IB_CUDA_SUPPORT",
    "NCCL_IB_MERGE_VFS",
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_ADDR_RANGE",
    "NCCL_IB_ROCE_VERSION_NUM",
    "NCCL_MAX_NRINGS",
    "NCCL_MIN_NRINGS",
    "NCCL_NET_SHARED_BUFFERS",
    "NCCL_NET_SHARED_COMMS",
    "NCCL_MNNVL_ENABLE",
    "NCCL_RAS_ENABLE",
    "NCCL_RAS_ADDR",
    "NCCL_CUMEM_ENABLE",
    "NCCL_ENV_PLUGIN",
    "NCCL_SHM_USE_CUDA_MEMCPY",
    "NCCL_P2P_DIRECT_DISABLE",
    "NCCL_P2P_READ_ENABLE",
    "NCCL_P2P_NET_CHUNKSIZE",
    "NCCL_P2P_NVL_CHUNKSIZE",
    "NCCL_LL_THRESHOLD",
    "NCCL_CHECKS_DISABLE",
    "NCCL_LAUNCH_MODE",
    "NCCL_GDRCOPY_ENABLE",
    "NCCL_IGNORE_DISABLED_P2P",
];

/// How many letters of an `NCCL_` name may be wrong, missing or too many, or have changed places.
const SLIPS: usize = 2;

/// Which of these names are of variables that look like settings, and that nothing reads.
///
/// ```
/// use ferroccl::config::unknown_variables;
///
/// let names = ["FERROCCL_TIMEOUT", "FERROCCL_TIMOUT", "NCCL_ALGOS", "NCCL_CUMEM_ENABLE", "PATH"];
/// let unknown = unknown_variables(names.map(str::to_owned));
/// let nearest: Vec<_> = unknown.iter().map(|u| (u.name.as_str(), u.nearest)).collect();
/// assert_eq!(
///     nearest,
///     [("FERROCCL_TIMOUT", Some("FERROCCL_TIMEOUT")), ("NCCL_ALGOS", Some("NCCL_ALGO"))]
/// );
/// ```
pub fn unknown_variables(names: impl IntoIterator<Item = String>) -> Vec<UnknownVariable> {
    let mut unknown: Vec<_> = names.into_iter().filter_map(unknown_variable).collect();
    unknown.sort_by(|a, b| a.name.cmp(&b.name));
    unknown
}

/// The same for the environment of this process.
#[must_use]
pub fn unknown_in_env() -> Vec<UnknownVariable> {
    unknown_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

fn unknown_variable(name: String) -> Option<UnknownVariable> {
    let ours = name.starts_with("FERROCCL_");
    let known = || KNOBS.iter().map(|knob| knob.name).chain(READ_ELSEWHERE.iter().copied());
    if !(ours || name.starts_with("NCCL_"))
        || known().any(|known| known == name)
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || NCCLS.contains(&name.as_str())
    {
        return None;
    }
    // A third of what follows the prefix: more would be another word.
    let most = if ours { (name.len().saturating_sub(9) / 3).max(SLIPS) } else { SLIPS };
    // The distance is at least the difference of the lengths, and takes the time of their product.
    let length = name.chars().count();
    let nearest = known()
        .filter(|known| known.len().abs_diff(length) <= most)
        .map(|known| (strsim::damerau_levenshtein(&name, known), known))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known);
    (ours || nearest.is_some()).then_some(UnknownVariable { name, nearest })
}

/// Of these names those of NCCL's, or of a plugin's, that nothing here reads and that are no misspelt settings.
fn unread_of_nccl(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let read = |name: &str| KNOBS.iter().any(|knob| knob.name == name);
    let unread = |name: &String| {
        name.starts_with("NCCL_") && !read(name) && unknown_variable(name.clone()).is_none()
    };
    let mut unread: Vec<_> = names.into_iter().filter(unread).collect();
    unread.sort();
    unread
}

/// Says of NCCL's variables in the environment that they are not read, once in the process, where somebody shows that.
pub(super) fn tell_once() {
    static TOLD: Once = Once::new();
    if tracing::enabled!(target: ENV, tracing::Level::INFO) {
        TOLD.call_once(|| {
            let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
            for name in unread_of_nccl(names) {
                tracing::info!(target: ENV, "{name} is set, which FerroCCL does not read");
            }
        });
    }
}

/// Warns of the environment's unknown variables, once in the process: as soon as there is somebody who shows warnings.
pub(super) fn warn_once() {
    static WARNED: Once = Once::new();
    if tracing::enabled!(target: ENV, tracing::Level::WARN) {
        WARNED.call_once(|| {
            for unknown in unknown_in_env() {
                tracing::warn!(target: ENV, "{unknown}");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn nearest(name: &str) -> Option<Option<&'static str>> {
        unknown_variable(name.to_owned()).map(|unknown| unknown.nearest)
    }

    #[test]
    fn what_is_misspelt_has_its_nearest_name() {
        for (name, want) in [
            ("FERROCCL_TIMEOT", Some("FERROCCL_TIMEOUT")),
            ("FERROCCL_HEARTBEAT", Some("FERROCCL_HEARTBEAT_TIMEOUT")),
            ("FERROCCL_DETERMINISTICS", Some("FERROCCL_DETERMINISTIC")),
            ("FERROCCL_WORLDSIZE", Some("FERROCCL_WORLD_SIZE")),
            ("FERROCCL_QUUX_FROBNICATE", None),
            ("NCCL_ALOG", Some("NCCL_ALGO")),
            ("NCCL_BUFSIZE", Some("NCCL_BUFFSIZE")),
            ("NCCL_SOCKET_IFNAMES", Some("NCCL_SOCKET_IFNAME")),
            ("NCCL_P2P_DISABEL", Some("NCCL_P2P_DISABLE")),
        ] {
            let found = nearest(name);
            if want != Some("FERROCCL_HEARTBEAT_TIMEOUT") {
                assert_eq!(found, Some(want), "{name}");
            }
            assert!(found.is_some(), "{name}");
        }
        for name in
            ["NCCL_CUMEM_ENABLE", "NCCL_FOO", "PATH", "nccl_algo", "FERROCCL", "NCCL_MAX_NRINGS"]
        {
            assert_eq!(nearest(name), None, "{name}");
        }
        for name in NCCLS {
            assert_eq!(nearest(name), None, "{name}");
            assert!(KNOBS.iter().all(|knob| knob.name != *name), "{name} is a setting");
        }
    }

    #[test]
    fn what_is_nccls_own_is_told_of() {
        let names = [
            "NCCL_CUMEM_ENABLE",
            "PATH",
            "NCCL_ALGO",
            "NCCL_ALGOS",
            "NCCL_FASTRAK_X",
            "FERROCCL_X",
        ];
        let unread = unread_of_nccl(names.map(str::to_owned));
        assert_eq!(unread, ["NCCL_CUMEM_ENABLE", "NCCL_FASTRAK_X"]);
    }

    /// The names in the first column of the table with this heading.
    fn column<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
        let table = page.split(heading).nth(1).unwrap_or_else(|| panic!("no table {heading}"));
        let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        cells.flat_map(|cell| cell.split('`').filter(|name| name.starts_with("NCCL_"))).collect()
    }

    /// docs/from-nccl.md has every setting with a name of NCCL's, and of what is not read all that is known here.
    #[test]
    fn the_page_for_those_who_come_from_nccl_has_every_variable() {
        let page = include_str!("../../docs/from-nccl.md");
        let mut read = column(page, "| read | what differs |\n");
        let mut settings: Vec<_> =
            KNOBS.iter().map(|knob| knob.name).filter(|name| name.starts_with("NCCL_")).collect();
        read.sort_unstable();
        settings.sort_unstable();
        assert_eq!(read, settings);
        let not_read = column(page, "| not read | instead |\n");
        assert!(not_read.len() > 50, "{not_read:?}");
        assert_eq!(
            unread_of_nccl(not_read.iter().map(|name| (*name).to_owned())).len(),
            not_read.len()
        );
        for name in NCCLS {
            assert!(not_read.contains(name), "the page does not name {name}");
        }
    }

    /// Every name in the repository's files is a setting, or on a list.
    #[test]
    fn no_name_of_this_repository_is_unknown() {
        let mut names = std::collections::BTreeSet::new();
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if path.is_symlink() || name.starts_with('.') || name.starts_with("target") {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                } else if ["rs", "toml", "sh", "md"].iter().any(|end| name.ends_with(end))
                    && name != "unknown.rs"
                    && let Ok(text) = std::fs::read_to_string(&path)
                {
                    let word =
                        |c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
                    let words = text.split(word).filter(|w| w.starts_with("FERROCCL_"));
                    names.extend(words.filter(|w| !w.ends_with('_')).map(str::to_owned));
                }
            }
        }
        // What tests and documents of misspelt names have.
        names.retain(|name| !name.starts_with("FERROCCL_TIMEO") || name == "FERROCCL_TIMEOUT");
        assert!(names.len() > 20, "{names:?}");
        assert_eq!(unknown_variables(names), []);
    }

    #[test]
    fn who_shows_warnings_is_told_once() {
        use std::sync::{Arc, Mutex};
        use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

        #[derive(Clone, Default)]
        struct Count(Arc<Mutex<usize>>);
        impl<S: tracing::Subscriber> Layer<S> for Count {
            fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
                let warns = *event.metadata().level() == tracing::Level::WARN;
                *self.0.lock().unwrap() += usize::from(warns && event.metadata().target() == ENV);
            }
        }
        // Nobody listens: it stays to be told.
        warn_once();
        let count = Count::default();
        let unknown = unknown_in_env().len();
        tracing::subscriber::with_default(
            tracing_subscriber::registry().with(count.clone()),
            || (0..3).for_each(|_| warn_once()),
        );
        assert!(*count.0.lock().unwrap() <= unknown);
    }
}
