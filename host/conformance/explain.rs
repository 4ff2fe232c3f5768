//! Why a run under the adversary went wrong: which two accesses nothing orders, and which order would have.

use std::fmt;

use ferroccl_device::gpu::cpu::{Access, Order};

use super::drawing::{Drawing, DrawnEvent, DrawnKind};
use crate::runtime::cpu::{Conflict, MemoryAccess, MemoryEvent};

/// What went wrong, in the smallest run that was found.
///
/// [`Display`](fmt::Display) is the explanation with a space-time drawing as text; [`Explanation::svg`] is the drawing as a picture.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The run.
    pub run: String,
    /// Its error.
    pub wrong: String,
    /// The two accesses, and what is missing between them; sentences.
    pub why: Vec<String>,
    drawing: Option<Drawing>,
}

/// The order that is missing between two accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// Who loads has looked at nothing that the other had published.
    NoFlag,
    /// The flag was stored before the data.
    FlagFirst,
    /// A flag of an earlier step was taken for this one's.
    OldFlag,
    /// The flag's store is no release.
    Release,
    /// The flag's load is no acquire.
    Acquire,
    /// Who stores has not waited until the data was read.
    Credit,
    /// Two ranks store to one place.
    TwoWriters,
    /// Nothing that is looked at.
    Unknown,
}

impl Missing {
    /// In words, of the ranks that come first and second.
    fn words(self, (a, b): (u32, u32)) -> String {
        match self {
            Missing::NoFlag => format!(
                "Rank {b} has looked at no word that rank {a} stored after the data: it does not wait for this data at all."
            ),
            Missing::FlagFirst => format!(
                "Rank {a} has stored the flag F before the data D: who sees the flag does not know that the data is there. The flag has to \
                 be stored last, by a release."
            ),
            Missing::OldFlag => format!(
                "The flag F that rank {b} saw is of an earlier step: rank {a} stores this step's after the data. The flag of a step has \
                 to differ from all that may still be in its place."
            ),
            Missing::Release => format!(
                "Rank {a} stores the flag F after the data D, but in no order (st_relaxed): it may be seen before the data is. A release \
                 (st_release) forbids that."
            ),
            Missing::Acquire => format!(
                "Rank {b} loads the flag F in no order (ld_relaxed): a GPU may have loaded the data before it. An acquire (ld_acquire) \
                 forbids that."
            ),
            Missing::Credit => format!(
                "Rank {b} stores into what rank {a} has loaded, and nothing has told it that rank {a} was done. It has to wait for \
                 credit, as Prims::begin_step does (Rules::WAIT_FOR_CREDIT), and the receiver has to give it after its last load, as \
                 Prims::end_step does."
            ),
            Missing::TwoWriters => {
                format!("Ranks {a} and {b} store to one place: a slot has one sender.")
            }
            Missing::Unknown => {
                "The flag's store is a release behind the data, and its load an acquire before it: what is missing is not between these."
                    .to_owned()
            }
        }
    }
}

impl Explanation {
    /// From what a run has done to memory. `name` says what lies at an address.
    pub(super) fn new(
        run: String,
        wrong: String,
        events: &[MemoryEvent],
        conflict: Option<Conflict>,
        name: &dyn Fn(u64) -> String,
    ) -> Self {
        let find = |number: u64| {
            events.binary_search_by_key(&number, |e| e.number).ok().and_then(|i| events.get(i))
        };
        let pair = conflict.and_then(|c| Some((find(c.first)?, find(c.second)?, c.stale)));
        let Some((first, second, stale)) = pair else {
            let why = "All accesses to data are in an order that the protocol asks for. So it is not an order that is missing: look at \
                 what is computed, and at what is waited for."
                .to_owned();
            return Explanation { run, wrong, why: vec![why], drawing: None };
        };
        let ranks = (first.rank, second.rank);
        let does = |event: &MemoryEvent| match event.what {
            MemoryAccess::Load(_) => "loads",
            _ => "stores",
        };
        let mut why = vec![
            format!("D is {}.", name(second.address)),
            format!(
                "Rank {} {} D (event {}), and rank {} {} it (event {}): no order has the one before the other.",
                first.rank,
                does(first),
                first.number,
                second.rank,
                does(second),
                second.number
            ),
        ];
        if stale {
            why.push(
                "What was stored is not to be seen yet at that moment: the older value is loaded."
                    .to_owned(),
            );
        }
        let (missing, flag) = missing(events, first, second);
        if let Some((store, _)) = flag {
            why.push(format!("F is {}.", name(store.address)));
        }
        why.push(missing.words(ranks));
        let drawing = Some(draw(events, (first, second), flag));
        Explanation { run, wrong, why, drawing }
    }

    /// The drawing as SVG: time goes down, a column for each of the two ranks, memory between them. `None` where no two accesses were
    /// out of order.
    #[must_use]
    pub fn svg(&self) -> Option<String> {
        self.drawing.as_ref().map(Drawing::svg)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.run, self.wrong)?;
        self.why.iter().try_for_each(|sentence| writeln!(f, "  {sentence}"))?;
        if let Some(drawing) = &self.drawing {
            writeln!(f)?;
            drawing.fmt(f)?;
        }
        Ok(())
    }
}

/// Whether two events touch the same bytes.
fn overlap(a: &MemoryEvent, b: &MemoryEvent) -> bool {
    a.address < b.address + b.bytes as u64 && b.address < a.address + a.bytes as u64
}

/// The store of a flag, and the load that saw it.
type Flag<'e> = Option<(&'e MemoryEvent, &'e MemoryEvent)>;

/// The order that is missing between two accesses, and the flag that should have had it.
fn missing<'e>(
    events: &'e [MemoryEvent],
    first: &'e MemoryEvent,
    second: &'e MemoryEvent,
) -> (Missing, Flag<'e>) {
    match (first.what, second.what) {
        (MemoryAccess::Load(_), _) => return (Missing::Credit, None),
        (_, MemoryAccess::Load(_)) => {}
        _ => return (Missing::TwoWriters, None),
    }
    let same = |a: &MemoryEvent, b: &MemoryEvent| (a.rank, a.block) == (b.rank, b.block);
    let is_word = |order: Order| matches!(order, Order::Relaxed | Order::Release);
    let flags: Vec<&MemoryEvent> = events
        .iter()
        .filter(|e| {
            matches!(e.what, MemoryAccess::Store(order) if is_word(order)) && same(e, first)
        })
        .collect();
    // The last word that the loader looked at before, and that the other had stored.
    let looked = events.iter().rev().filter(|e| e.number < second.number && same(e, second));
    let looked =
        looked.filter(|e| matches!(e.what, MemoryAccess::Load(Access::Relaxed | Access::Acquire)));
    let seen = looked.filter_map(|load| {
        let store = flags.iter().rev().find(|store| {
            let visible = |e: &&MemoryEvent| e.what == MemoryAccess::Visible(store.number);
            store.address == load.address
                && store.word == load.word
                && events.iter().find(visible).is_some_and(|e| e.number < load.number)
        })?;
        Some((*store, load))
    });
    let Some((store, load)) = { seen }.next() else { return (Missing::NoFlag, None) };
    let later = |e: &&&MemoryEvent| e.address == store.address && e.number > first.number;
    let why = match (store.what, load.what) {
        _ if store.number < first.number => match flags.iter().find(later) {
            Some(later) if later.word != store.word => Missing::OldFlag,
            _ => Missing::FlagFirst,
        },
        (MemoryAccess::Store(Order::Relaxed), _) => Missing::Release,
        (_, MemoryAccess::Load(Access::Relaxed)) => Missing::Acquire,
        _ => Missing::Unknown,
    };
    (why, Some((store, load)))
}

/// What happened at the places of the two accesses and of the flag, around them.
fn draw(events: &[MemoryEvent], pair: (&MemoryEvent, &MemoryEvent), flag: Flag<'_>) -> Drawing {
    let (first, second) = pair;
    let ranks = [first.rank, second.rank];
    let from = flag.map_or(first.number, |(store, _)| store.number.min(first.number));
    let until = second.number.max(first.number);
    let mut rows: Vec<DrawnEvent> = Vec::new();
    let place = |event: &MemoryEvent| match flag {
        _ if overlap(event, second) => Some('D'),
        Some((store, _)) if overlap(event, store) => Some('F'),
        _ => None,
    };
    let mut after = 0;
    for event in events.iter().filter(|e| e.number >= from) {
        // What becomes visible only later is the point of it.
        let late =
            matches!(event.what, MemoryAccess::Visible(store) if store >= from && store <= until);
        if event.number > until && !(late && after < 2) {
            continue;
        }
        let Some(place) = place(event) else { continue };
        let Some(lane) = ranks.iter().position(|rank| *rank == event.rank) else { continue };
        if event.number > until {
            after += 1;
        }
        let kind = match event.what {
            MemoryAccess::Load(access) => DrawnKind::Load(access),
            MemoryAccess::Store(order) => DrawnKind::Store(order),
            MemoryAccess::Visible(store) => DrawnKind::Visible(store),
            MemoryAccess::Swap => DrawnKind::Swap,
        };
        let row = DrawnEvent {
            number: event.number,
            lane,
            place,
            kind,
            word: event.word,
            marked: event.number == first.number || event.number == second.number,
            times: 1,
        };
        match rows.last_mut() {
            Some(last) if last.is_like(&row) => last.times += 1,
            _ => rows.push(row),
        }
    }
    Drawing::new(ranks, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64, rank: u32, what: MemoryAccess, address: u64, word: u64) -> MemoryEvent {
        MemoryEvent { number, rank, block: 0, what, address, bytes: 8, word: Some(word) }
    }

    /// Rank 0 stores data to 64 and a flag to 72, rank 1 loads them: with these orders, the flag at this place among the stores.
    fn run(store: Order, load: Access, flag_first: bool) -> Vec<MemoryEvent> {
        let data = MemoryAccess::Store(Order::Plain);
        let (flag_at, data_at) = if flag_first { (0, 1) } else { (1, 0) };
        let mut all = vec![
            event(data_at, 0, data, 64, 9),
            event(flag_at, 0, MemoryAccess::Store(store), 72, 5),
            event(2, 0, MemoryAccess::Visible(flag_at), 72, 0),
            event(3, 1, MemoryAccess::Load(load), 72, 5),
            event(4, 1, MemoryAccess::Load(Access::Data), 64, 0),
            event(5, 0, MemoryAccess::Visible(data_at), 64, 0),
        ];
        all.sort_by_key(|e| e.number);
        all
    }

    #[test]
    fn the_order_that_is_missing_is_named() {
        for (store, load, flag_first, wanted) in [
            (Order::Relaxed, Access::Acquire, false, Missing::Release),
            (Order::Release, Access::Relaxed, false, Missing::Acquire),
            (Order::Release, Access::Acquire, true, Missing::FlagFirst),
            (Order::Release, Access::Acquire, false, Missing::Unknown),
        ] {
            let events = run(store, load, flag_first);
            let data = events.iter().find(|e| e.address == 64).unwrap();
            let second = &events[4];
            let (found, flag) = missing(&events, data, second);
            assert_eq!(found, wanted);
            assert_eq!(flag.map(|(_, load)| load.number), Some(3));
        }
        // The flag that was seen is followed by another one of the same rank, behind the data.
        let mut events = run(Order::Release, Access::Acquire, true);
        events.push(event(6, 0, MemoryAccess::Store(Order::Release), 72, 6));
        assert_eq!(missing(&events, &events[1], &events[4]).0, Missing::OldFlag);
        let mut events = run(Order::Release, Access::Acquire, false);
        events[3].word = Some(4); // a flag that rank 0 did not store
        assert_eq!(missing(&events, &events[0], &events[4]).0, Missing::NoFlag);
        assert_eq!(missing(&events, &events[4], &events[5]).0, Missing::Credit);
    }

    #[test]
    fn an_explanation_has_the_places_and_the_drawing() {
        let events = run(Order::Relaxed, Access::Acquire, false);
        let conflict = Conflict { first: 0, second: 4, stale: true };
        let name = |address: u64| format!("place {address}");
        let new = |conflict| {
            let (run, wrong) = ("seed 1".to_owned(), "3, not 4".to_owned());
            Explanation::new(run, wrong, &events, conflict, &name)
        };
        let why = new(Some(conflict));
        let text = why.to_string();
        for words in
            ["seed 1: 3, not 4", "D is place 64.", "F is place 72.", "(st_release) forbids"]
        {
            assert!(text.contains(words), "{text}");
        }
        assert!(why.svg().unwrap().starts_with("<svg"));
        let none = new(None);
        assert!(none.svg().is_none() && none.to_string().contains("not an order that is missing"));
    }
}
