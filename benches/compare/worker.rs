//! A rank in a process of its own.

use std::io::BufRead;

use ferroccl::config::Config;
use ferroccl::{Communicator, Device, UniqueId};

use crate::ferro::Group;
use crate::{Failure, Outcome};

/// Requests from standard input; rank 0 answers on standard output. `place` is `RANK/RANKS`.
///
/// Rank 0's first line is the group's id, in hex; it is the first line of input of the others.
pub(crate) fn run(place: &str) -> Outcome<()> {
    let (rank, ranks) = place.split_once('/').ok_or("a worker's place is RANK/RANKS")?;
    let (rank, ranks): (u32, u32) = (rank.parse()?, ranks.parse()?);
    let mut lines = std::io::stdin().lock().lines();
    let id = if rank == 0 {
        let id = UniqueId::new(&Config::from_env()?.bootstrap())?;
        println!("{}", to_hex(&id.to_bytes()));
        id
    } else {
        let line = lines.next().ok_or("no id came")??;
        UniqueId::from_bytes(&from_hex(&line)?)?
    };
    let device = Device::cpu();
    let group = Group::new(&device, vec![Communicator::init_rank(&device, ranks, &id, rank)?])?;
    for line in lines {
        let sample = group.measure(line?.parse()?)?;
        if rank == 0 {
            println!("{}", serde_json::to_string(&sample)?);
        }
    }
    Ok(())
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn from_hex<const N: usize>(text: &str) -> Outcome<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return Err(Failure::from(format!("an id has {} hex digits", 2 * N)));
    }
    for (byte, i) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[i..i + 2], 16)?;
    }
    Ok(bytes)
}
