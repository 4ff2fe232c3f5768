//! The verbs as types: what each takes and gives.
//!
//! | verb | receives | combines with input | to output | sends |
//! |---|---|---|---|---|
//! | `Send` | | (input) | | yes |
//! | `CopySend` | | (input) | yes | yes |
//! | `Recv` | yes | | yes | |
//! | `RecvSend` | yes | | | yes |
//! | `RecvCopySend` | yes | | yes | yes |
//! | `RecvReduceSend` | yes | yes | | yes |
//! | `RecvReduceSendFinal` | yes | yes | | yes, final |
//! | `RecvReduceCopy` | yes | yes | yes, final | |
//! | `RecvReduceCopySend` | yes | yes | yes, final | yes |
//!
//! `SendPartial`, `RecvReducePartial`, `RecvAddPartial` and `RecvAddFinal` are for what is combined in a scratch
//! buffer: its content is not a rank's own value that would be scaled, and not final before the last one.
//!
//! Each is a method of [`Prims`](super::Prims), named as the verb. Some are there twice: `send(from, n)` is given the place in the
//! channel's part of the call's buffers, `send_from(input, n)` any memory.
//!
//! A `Direct` verb does the same, but where the peer's user buffer can be reached its data goes there
//! without passing through a slot; the steps are counted all the same.

/// One verb.
pub trait Verb {
    /// Takes a slot from every receiving connection.
    const RECV: bool;
    /// Fills a slot of every sending connection.
    const SEND: bool;
    /// Takes the input.
    const INPUT: bool;
    /// The input is the rank's own value, not one that has been combined already.
    const OWN: bool;
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
            const INPUT: bool = has(&[$(Flag::$flag),*], Flag::Input) || has(&[$(Flag::$flag),*], Flag::Partial);
            const OWN: bool = has(&[$(Flag::$flag),*], Flag::Input);
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
    Partial,
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
    CopySend: Input Output Send;
    Recv: Recv Output;
    RecvSend: Recv Send;
    RecvCopySend: Recv Output Send;
    RecvReduceSend: Recv Input Send;
    RecvReduceSendFinal: Recv Input Send Final;
    RecvReduceCopy: Recv Input Output Final;
    RecvReduceCopySend: Recv Input Output Final Send;
    SendPartial: Partial Send;
    RecvReducePartial: Recv Input Output;
    RecvAddPartial: Recv Partial Output;
    RecvAddFinal: Recv Partial Output Final;
    DirectSend: Input Send DirectSend;
    DirectCopySend: Input Output Send DirectSend;
    DirectRecv: Recv Output DirectRecv;
    DirectRecvCopySend: Recv Output Send DirectRecv DirectSend;
    DirectRecvReduceCopySend: Recv Input Output Final Send DirectSend;
}
