//! The verbs as types: what each takes and gives.
//!
//! | verb | receives | combines with input | to output | sends |
//! |---|---|---|---|---|
//! | `Send` | | (input) | | yes |
//! | `DirectCopySend` | | (input) | yes | yes |
//! | `Recv` | yes | | yes | |
//! | `RecvCopySend` | yes | | yes | yes |
//! | `RecvReduceSend` | yes | yes | | yes |
//! | `RecvReduceCopy` | yes | yes | yes, final | |
//! | `RecvReduceCopySend` | yes | yes | yes, final | yes |
//!
//! A `Direct` verb does the same, but where the peer's user buffer can be reached its data goes there
//! without passing through a slot; the steps are counted all the same.

/// One verb.
pub trait Verb {
    /// Takes a slot from every receiving edge.
    const RECV: bool;
    /// Fills a slot of every sending edge.
    const SEND: bool;
    /// Takes the own input.
    const INPUT: bool;
    /// Writes the own output.
    const OUTPUT: bool;
    /// Makes the final value.
    const FINAL: bool;
    /// May write into the output of the receivers.
    const DIRECT_SEND: bool;
    /// Senders may have written into the own output.
    const DIRECT_RECV: bool;
}

macro_rules! verbs {
    ($($name:ident: $($flag:ident)*;)*) => { $(
        #[doc = concat!("See the table of [the module](self): ", $(stringify!($flag), " ",)* "are set.")]
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl Verb for $name {
            const RECV: bool = has(&[$(Flag::$flag),*], Flag::Recv);
            const SEND: bool = has(&[$(Flag::$flag),*], Flag::Send);
            const INPUT: bool = has(&[$(Flag::$flag),*], Flag::Input);
            const OUTPUT: bool = has(&[$(Flag::$flag),*], Flag::Output);
            const FINAL: bool = has(&[$(Flag::$flag),*], Flag::Final);
            const DIRECT_SEND: bool = has(&[$(Flag::$flag),*], Flag::DirectSend);
            const DIRECT_RECV: bool = has(&[$(Flag::$flag),*], Flag::DirectRecv);
        }
    )* };
}

#[derive(Clone, Copy)]
enum Flag {
    Recv,
    Send,
    Input,
    Output,
    Final,
    DirectSend,
    DirectRecv,
}

const fn has(flags: &[Flag], flag: Flag) -> bool {
    let mut i = 0;
    while i < flags.len() {
        if flags[i] as u8 == flag as u8 {
            return true;
        }
        i += 1;
    }
    false
}

verbs! {
    Send: Input Send;
    Recv: Recv Output;
    RecvCopySend: Recv Output Send;
    RecvReduceSend: Recv Input Send;
    RecvReduceCopy: Recv Input Output Final;
    RecvReduceCopySend: Recv Input Output Final Send;
    DirectSend: Input Send DirectSend;
    DirectCopySend: Input Output Send DirectSend;
    DirectRecv: Recv Output DirectRecv;
    DirectRecvCopySend: Recv Output Send DirectRecv DirectSend;
    DirectRecvReduceCopySend: Recv Input Output Final Send DirectSend;
}
