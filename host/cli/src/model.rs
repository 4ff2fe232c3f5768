//! Machines that the emulator's clock goes by: one of the library's, or a file.

use std::path::Path;

use ferroccl::runtime::ptx::MachineModel;

/// The machine of this name, or the one that a file describes (`ferroccl ptx models NAME --json` writes one). What has a `/` or
/// ends in `.json` is a file.
pub(crate) fn find(name: &str) -> Result<MachineModel, String> {
    if let Some(model) = MachineModel::find(name) {
        return Ok(model);
    }
    let is_file = name.contains('/') || Path::new(name).extension().is_some_and(|e| e == "json");
    if !is_file {
        let names: Vec<&str> = MachineModel::ALL.iter().map(|model| &*model.name).collect();
        return Err(format!("there are {}, or a file .json", names.join(", ")));
    }
    let text = std::fs::read_to_string(name).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}
