//! Flags of nccl-tests that change nothing here: a command line made for it is understood as it is.

use clap::{ArgAction, Args};

use super::values::on_or_off;

/// See the module.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Without effect, for command lines made for nccl-tests")]
pub(crate) struct Accepted {
    /// Whether to use CUDA's NULL stream: every rank has a stream of its own
    #[arg(short = 'y', long = "stream_null", value_name = "0|1", default_value = "0", value_parser = on_or_off(),
          action = ArgAction::Set)]
    pub(crate) stream_null: bool,
    /// How NCCL lays out blocks: channels are chosen by size (--channels)
    #[arg(short = 'x', long = "cta_policy", value_name = "0-2", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(crate) cta_policy: u8,
    /// Which kernel of the device API; only 0, the library's calls. The package examples/fused has kernels of the device API
    #[arg(short = 'D', long = "device_implementation", value_name = "0", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(0..=0))]
    pub(crate) device_implementation: u8,
    /// Blocks of the kernel of -D
    #[arg(short = 'V', long = "device_cta_count", value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u8).range(1..=128))]
    pub(crate) device_cta_count: u8,
}

impl Accepted {
    /// What was asked for, and is not done.
    pub(crate) fn asked(self) -> Vec<&'static str> {
        let flags = [
            (self.stream_null, "-y"),
            (self.cta_policy > 0, "-x"),
            (self.device_cta_count != 16, "-V"),
        ];
        flags.into_iter().filter(|(asked, _)| *asked).map(|(_, flag)| flag).collect()
    }
}
