//! A call, and its signature, which neighbours compare.

use std::fmt;

use ferroccl_device::abi::{Algorithm, Collective, DataType, ProtocolId, ReduceOp, Signature};

/// A call of a collective, or of a send or receive, as the user made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveCall {
    /// The collective.
    pub collective: Collective,
    /// Elements of one block where a buffer has a block for each rank, and else of a buffer.
    pub count: usize,
    /// The type of the elements.
    pub data_type: DataType,
    /// The operator that combines them.
    pub op: ReduceOp,
    /// The root, if there is one; for a send or receive the sender.
    pub root: Option<u32>,
}

impl CollectiveCall {
    /// Bytes of the largest of a rank's buffers.
    #[must_use]
    pub const fn largest_bytes(&self, ranks: u32) -> u64 {
        let blocks = match self.collective {
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => {
                ranks as usize
            }
            _ => 1,
        };
        self.bytes().saturating_mul(blocks) as u64
    }

    /// Bytes of `count` elements. Saturates: no buffer is that large.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.count.saturating_mul(self.data_type.size())
    }

    /// The words that neighbours compare.
    #[must_use]
    pub fn signature(
        &self,
        seq: u64,
        algorithm: Algorithm,
        protocol: ProtocolId,
        channels: u32,
    ) -> Signature {
        let bytes = [
            self.collective as u8,
            self.data_type as u8,
            self.op as u8,
            algorithm.index() as u8,
            protocol.index() as u8,
            channels as u8,
        ];
        let mut call = [0; 8];
        call[..bytes.len()].copy_from_slice(&bytes);
        let root = self.root.map_or(0, |root| u64::from(root) + 1);
        Signature { seq, count: self.count as u64, call: u64::from_le_bytes(call), root }
    }
}

/// One side of a mismatch as text. A neighbour's words may have any value: unknown ones are shown as numbers.
struct SignatureText<'a>(&'a [u64; 4], bool);

impl fmt::Display for SignatureText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &SignatureText(&[seq, count, call, root], plan) = self;
        let [collective, data_type, op, algorithm, protocol, channels, tag @ ..] =
            call.to_le_bytes();
        let name = |name: Option<&'static str>, raw: u8| {
            name.map_or_else(|| format!("#{raw}"), str::to_owned)
        };
        write!(
            f,
            "{}(count {count}, type {}, op {}",
            name(Collective::from_index(collective.into()).map(Collective::name), collective),
            name(DataType::from_index(data_type.into()).map(DataType::name), data_type),
            name(ReduceOp::from_index(op.into()).map(ReduceOp::name), op),
        )?;
        if root != 0 {
            write!(f, ", root {}", root - 1)?;
        }
        write!(f, ")")?;
        if plan {
            write!(
                f,
                " as its call {seq}, by {} {} on {channels} channels",
                Algorithm::from_index(algorithm.into())
                    .map_or_else(|| format!("#{algorithm}"), |algorithm| algorithm.to_string()),
                ProtocolId::from_index(protocol.into())
                    .map_or_else(|| format!("#{protocol}"), |protocol| protocol.to_string()),
            )?;
            match u16::from_le_bytes(tag) {
                0 => {}
                tag => write!(f, " with a kernel of the caller's (its name's number is {tag})")?,
            }
        }
        Ok(())
    }
}

/// The text of a call whose signature has these words: what the user passed.
#[must_use]
pub fn describe_call(words: &[u64; 4]) -> String {
    SignatureText(words, false).to_string()
}

/// The texts of two signatures, for a person to compare. Algorithm, protocol and channels are in them only when everything
/// that the users passed is equal.
#[must_use]
pub fn describe(ours: &[u64; 4], theirs: &[u64; 4]) -> (String, String) {
    let user = |words: &[u64; 4]| (words[1], words[2] & 0xff_ffff, words[3]);
    let plan = user(ours) == user(theirs);
    (SignatureText(ours, plan).to_string(), SignatureText(theirs, plan).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: CollectiveCall = CollectiveCall {
        collective: Collective::AllReduce,
        count: 5,
        data_type: DataType::F32,
        op: ReduceOp::Sum,
        root: None,
    };

    #[test]
    fn a_mismatch_names_what_differs() {
        let ours = CALL.signature(1, Algorithm::Ring, ProtocolId::Ll, 1);
        let theirs =
            CollectiveCall { count: 6, ..CALL }.signature(1, Algorithm::Ring, ProtocolId::Ll, 1);
        let (a, b) = describe(&ours.words(), &theirs.words());
        assert_eq!(a, "all_reduce(count 5, type float, op sum)");
        assert_eq!(b, "all_reduce(count 6, type float, op sum)");
        let theirs = CALL.signature(1, Algorithm::Ring, ProtocolId::Simple, 2);
        let (_, b) = describe(&ours.words(), &theirs.words());
        assert_eq!(
            b,
            "all_reduce(count 5, type float, op sum) as its call 1, by Ring Simple on 2 channels"
        );
    }

    #[test]
    fn garbage_is_shown_not_trusted() {
        let (_, b) = describe(&[0; 4], &[u64::MAX; 4]);
        assert!(
            b.starts_with(
                "#255(count 18446744073709551615, type #255, op #255, root 18446744073709551614)"
            ),
            "{b}"
        );
    }
}
