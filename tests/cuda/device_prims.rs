//! Primitives of a user's kernel on GPUs of a process. The stand-in knows the kernel by its name, and runs its code for CPUs.

use ferroccl::{ChannelPeers, DeviceChannels};

use crate::pipes::{PIPES, Pipes};
use crate::pipes_run;
use crate::stand_in::{alone, gpus, ready};

/// All that is looked at before the stand-in runs the kernel: its name, and the bytes of its argument.
const PTX: &str = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry test_pipes(\n\
    .param .align 8 .b8 test_pipes_param_0[128]\n)\n{\nret;\n}\n";
const _: () = assert!(size_of::<Pipes>() == 128);

#[test]
fn blocks_of_gpus_have_primitives() {
    if !ready() {
        return;
    }
    let _alone = alone();
    for (ordinals, all) in
        [(&[0, 1][..], true), (&[0, 1, 0], false), (&[1], true), (&[1, 1, 0, 0], true)]
    {
        let peers = if all { ChannelPeers::All } else { ChannelPeers::Ring };
        let channels = (DeviceChannels::new(2, peers), all, 3);
        pipes_run::run(&gpus(ordinals), &PIPES.with_ptx(PTX), (2, 3000, 4), channels)
            .unwrap_or_else(|wrong| panic!("{ordinals:?}: {wrong}"));
    }
}
