//! `ferroccl ptx cfg`

use clap::Args;

use super::Failure;

/// Draw the blocks of a kernel and the ways between them
#[derive(Args, Clone, Debug)]
pub(super) struct CfgArgs {}

pub(super) fn run(_args: &CfgArgs) -> Result<(), Failure> {
    Ok(())
}
