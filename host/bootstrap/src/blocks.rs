//! What ranks have said in an all-gather.

/// What each of a group's ranks has said: its block. All are in one piece of memory.
#[derive(Clone, Debug, Default)]
pub struct GatheredBlocks {
    bytes: Vec<u8>,
    /// By rank: where its block begins and ends.
    places: Vec<(usize, usize)>,
}

impl GatheredBlocks {
    /// Those at these places in `bytes`, which are inside.
    pub(super) fn at(bytes: Vec<u8>, places: Vec<(usize, usize)>) -> Self {
        GatheredBlocks { bytes, places }
    }

    /// Of a group of one.
    pub(super) fn alone(mine: &[u8]) -> Self {
        GatheredBlocks { bytes: mine.to_vec(), places: vec![(0, mine.len())] }
    }

    /// In the order of ranks.
    ///
    /// ```
    /// use ferroccl_bootstrap::{Bootstrap, Settings, UniqueId};
    ///
    /// let id = UniqueId::listening_at(([127, 0, 0, 1], 0).into())?;
    /// let alone = Bootstrap::connect(&id, 0, 1, &Settings::default())?;
    /// let blocks = alone.gather_blocks(b"rank 0")?;
    /// assert_eq!(blocks.iter().collect::<Vec<_>>(), [b"rank 0"]);
    /// # Ok::<(), ferroccl_bootstrap::BootstrapError>(())
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.places.iter().map(|(start, end)| &self.bytes[*start..*end])
    }

    /// What `front` finds at the front of each block, which it gives with its length, and the blocks without that.
    pub(super) fn split<T>(
        mut self,
        front: impl Fn(&[u8]) -> Option<(T, usize)>,
    ) -> Option<(Vec<T>, Self)> {
        let (found, bytes): (Vec<T>, Vec<usize>) =
            self.iter().map(front).collect::<Option<Vec<_>>>()?.into_iter().unzip();
        for ((start, end), bytes) in self.places.iter_mut().zip(bytes) {
            *start = (*start + bytes).min(*end);
        }
        Some((found, self))
    }

    /// Each by itself.
    #[must_use]
    pub fn to_vecs(&self) -> Vec<Vec<u8>> {
        self.iter().map(<[u8]>::to_vec).collect()
    }
}

/// Equal are blocks of the same bytes, wherever these are.
impl PartialEq for GatheredBlocks {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for GatheredBlocks {}
