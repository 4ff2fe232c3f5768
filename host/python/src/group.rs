//! Groups: calls that start together. Python enters and leaves them by two functions, and the library takes a closure, so that
//! a thread's calls are kept here until the group ends.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use ferroccl::Stream;
use ferroccl::runtime::Event;
use pyo3::prelude::*;

use crate::call::Call;
use crate::communicator::Made;
use crate::errors::{argument, exception};

/// A call whose arguments have been checked as far as Python knows them.
pub(crate) type Launch =
    Box<dyn FnOnce(&ferroccl::Communicator, &Stream) -> ferroccl::Result<()> + Send>;

struct Queued {
    made: Arc<Made>,
    launch: Launch,
    end: Arc<OnceLock<Event>>,
}

#[derive(Default)]
struct OpenGroup {
    /// Groups within groups are part of the outermost one.
    depth: usize,
    queued: Vec<Queued>,
}

thread_local! {
    static GROUP: RefCell<OpenGroup> = RefCell::default();
}

/// Starts a call, or keeps it for the end of the thread's group.
pub(crate) fn start(py: Python<'_>, made: Arc<Made>, launch: Launch) -> PyResult<Call> {
    let end = Arc::new(OnceLock::new());
    let call = Call::new(Arc::clone(&made), Arc::clone(&end));
    let launch = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Some(launch);
        }
        group.queued.push(Queued { made: Arc::clone(&made), launch, end: Arc::clone(&end) });
        None
    });
    if let Some(launch) = launch {
        let _order = made.order();
        launch(&made.comm, &made.stream).map_err(|error| exception(py, &error))?;
        // The cell is new.
        let _ = end.set(made.stream.record());
    }
    Ok(call)
}

/// Opens a group of this thread's calls.
#[pyfunction]
pub(crate) fn group_start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Ends it: at the end of the outermost one all calls start.
#[pyfunction]
pub(crate) fn group_end(py: Python<'_>) -> PyResult<()> {
    let queued = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Err(argument("group", "none is open in this thread"));
        }
        group.depth -= 1;
        Ok(if group.depth == 0 { std::mem::take(&mut group.queued) } else { Vec::new() })
    })?;
    let mut ends = Vec::with_capacity(queued.len());
    let result = ferroccl::group(|| {
        for Queued { made, launch, end } in queued {
            ends.push((Arc::clone(&made), end));
            launch(&made.comm, &made.stream)?;
        }
        Ok(())
    });
    result.map_err(|error| exception(py, &error))?;
    let mut events: Vec<(Arc<Made>, Event)> = Vec::new();
    for (made, end) in ends {
        let known = events.iter().find(|(other, _)| Arc::ptr_eq(other, &made));
        let event = match known {
            Some((_, event)) => event.clone(),
            None => {
                let event = made.stream.record();
                events.push((made, event.clone()));
                event
            }
        };
        let _ = end.set(event);
    }
    Ok(())
}

/// Leaves the group, and forgets its calls.
#[pyfunction]
pub(crate) fn group_cancel() {
    GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.saturating_sub(1);
        group.queued.clear();
    });
}
