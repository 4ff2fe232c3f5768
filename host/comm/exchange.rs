//! What ranks say of themselves, exchanged over the bootstrap, and read once for all ranks of a process.
//!
//! Ranks that are threads of one process get the same bytes from an all-gather. Each of 1024 would read what the 1023 others say,
//! and keep a copy of it. So the first that has the bytes reads them, and the others take what it has read, if theirs are the same.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError, Weak};

use ferroccl_bootstrap::{Bootstrap, GatheredBlocks};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoding;
use crate::error::{Error, Result};

/// What all ranks have said in an all-gather, in their order.
#[derive(Debug)]
pub(super) struct Exchanged<C> {
    /// As it came.
    blocks: GatheredBlocks,
    all: C,
}

impl<C> Deref for Exchanged<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.all
    }
}

/// Identifies an all-gather: a secret of the group, which is as good as a random number, and the number of the all-gather.
type Key = ([u8; 32], u32);

/// What one of the ranks has read, as long as one of them has it. The lock is held while it is read.
type Slot = Arc<Mutex<Option<Weak<dyn Any + Send + Sync>>>>;

/// The all-gathers of this process.
fn slots() -> &'static Mutex<HashMap<Key, Slot>> {
    static SLOTS: OnceLock<Mutex<HashMap<Key, Slot>>> = OnceLock::new();
    SLOTS.get_or_init(Mutex::default)
}

/// The slot of an all-gather.
fn slot(key: Key) -> Slot {
    let mut slots = slots().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(slot) = slots.get(&key) {
        return Arc::clone(slot);
    }
    slots.retain(|_, slot| match slot.try_lock() {
        Ok(read) => read.as_ref().is_some_and(|read| read.strong_count() > 0),
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Poisoned(_)) => false,
    } || Arc::strong_count(slot) > 1);
    Arc::clone(slots.entry(key).or_default())
}

/// Gives `mine` to all ranks, and returns what each says (an all-gather).
///
/// # Errors
/// Those of the bootstrap, and [`Error::Malformed`] for what a rank of this version does not say.
pub(super) fn exchange<T, C>(bootstrap: &Bootstrap, mine: &T) -> Result<Arc<Exchanged<C>>>
where
    T: Serialize + DeserializeOwned,
    C: FromIterator<T> + Send + Sync + 'static,
{
    read(bootstrap, bootstrap.gather_blocks(&encoding::to_bytes(mine)?)?)
}

/// What all ranks have said in the last all-gather of the bootstrap.
///
/// # Errors
/// [`Error::Malformed`], which names the rank.
pub(super) fn read<T, C>(bootstrap: &Bootstrap, blocks: GatheredBlocks) -> Result<Arc<Exchanged<C>>>
where
    T: DeserializeOwned,
    C: FromIterator<T> + Send + Sync + 'static,
{
    read_once((bootstrap.secret("what ranks say"), bootstrap.gathers()), blocks)
}

fn read_once<T, C>(key: Key, blocks: GatheredBlocks) -> Result<Arc<Exchanged<C>>>
where
    T: DeserializeOwned,
    C: FromIterator<T> + Send + Sync + 'static,
{
    let slot = slot(key);
    let mut known = slot.lock().unwrap_or_else(PoisonError::into_inner);
    let read = known.as_ref().and_then(Weak::upgrade);
    if let Some(Ok(read)) = read.map(Arc::downcast::<Exchanged<C>>) {
        drop(known);
        if read.blocks == blocks {
            return Ok(read);
        }
        return Ok(Arc::new(decode(blocks)?));
    }
    let read = Arc::new(decode(blocks)?);
    *known = Some(Arc::downgrade(&read) as Weak<dyn Any + Send + Sync>);
    Ok(read)
}

fn decode<T: DeserializeOwned, C: FromIterator<T>>(blocks: GatheredBlocks) -> Result<Exchanged<C>> {
    let all = blocks.iter().enumerate().map(|(peer, bytes)| {
        encoding::from_bytes(bytes)
            .map_err(|e| Error::malformed(format!("what rank {peer} sent: {e}")))
    });
    let all = all.collect::<Result<C>>()?;
    Ok(Exchanged { blocks, all })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use ferroccl_bootstrap::{Settings, UniqueId};

    use super::*;

    /// Ranks of this process exchange words, of which `word` gives each rank's.
    fn exchanged(
        nranks: u32,
        word: impl Fn(u32) -> String + Sync,
    ) -> Vec<Arc<Exchanged<Vec<String>>>> {
        let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap();
        let settings = Settings::default();
        thread::scope(|scope| {
            let one = |rank| {
                let (id, settings, word) = (&id, &settings, &word);
                scope.spawn(move || {
                    let bootstrap = Bootstrap::connect(id, rank, nranks, settings).unwrap();
                    let first: Arc<Exchanged<Vec<String>>> =
                        exchange(&bootstrap, &word(rank)).unwrap();
                    // All of them have it at this moment.
                    bootstrap.barrier().unwrap();
                    first
                })
            };
            let ranks: Vec<_> = (0..nranks).map(one).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_of_a_process_have_what_is_said_once() {
        for nranks in [2, 3, 7] {
            let all = exchanged(nranks, |rank| format!("rank {rank}"));
            let said: Vec<String> = (0..nranks).map(|rank| format!("rank {rank}")).collect();
            assert!(all.iter().all(|one| Arc::ptr_eq(one, &all[0])));
            assert_eq!(**all[0], said);
            // Another group that says the same is another group.
            let others = exchanged(nranks, |rank| format!("rank {rank}"));
            assert!(!Arc::ptr_eq(&others[0], &all[0]));
        }
    }

    #[test]
    fn what_is_not_the_same_is_read_again() {
        let blocks = |words: &[&str]| {
            let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into()).unwrap();
            let alone = Bootstrap::connect(&id, 0, 1, &Settings::default()).unwrap();
            alone.gather_blocks(&encoding::to_bytes(&words.concat()).unwrap()).unwrap()
        };
        let key = ([7; 32], 1);
        let read = |words| read_once::<String, Vec<String>>(key, blocks(words)).unwrap();
        let (one, same, other) = (read(&["one"]), read(&["one"]), read(&["other"]));
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        assert_eq!((&one[0][..], &other[0][..]), ("one", "other"));
        // Of another kind.
        let bytes = read_once::<String, std::collections::BTreeSet<String>>(key, blocks(&["one"]));
        assert!(bytes.unwrap().contains("one"));
        drop((one, same));
        let again = read(&["again"]);
        assert_eq!(&again[0][..], "again");
        let none = read_once::<u64, Vec<u64>>(([8; 32], 1), blocks(&["no number"]));
        assert!(none.unwrap_err().to_string().contains("what rank 0 sent"));
    }
}
