//! Injected faults, over any network.
//!
//! Each end of a connection counts its messages and follows a plan of its own, which is made of the [`Faults`] and a seed. The
//! network below sees correct calls only: a message that is delayed here has been completed there.
//!
//! Plans are numbered in the order in which a process makes connections, so that the same calls in the same order have the
//! same faults.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tracing::debug;

use super::faults::{Delay, Faults};
use super::{
    Connecting, Listener, MAX_REQUESTS, MemoryHandle, MemoryKind, Net, Properties, RecvBuffer,
    RecvComm, Request, SendComm,
};
use crate::NetError;

/// A network that has these faults.
///
/// ```
/// use std::sync::Arc;
///
/// use ferroccl_proxy::net::{FaultNet, Faults, Net};
///
/// fn with_faults(net: Arc<dyn Net>, setting: &str) -> Result<Arc<dyn Net>, Box<dyn std::error::Error>> {
///     let faults: Faults = setting.parse()?;
///     Ok(Arc::new(FaultNet::new(net, faults)))
/// }
/// ```
#[derive(Clone, Debug)]
pub struct FaultNet {
    inner: Arc<dyn Net>,
    plans: FaultPlans,
}

impl FaultNet {
    /// This network with faults.
    #[must_use]
    pub fn new(inner: Arc<dyn Net>, faults: Faults) -> FaultNet {
        FaultNet { inner, plans: FaultPlans { faults, made: Arc::default() } }
    }
}

impl Net for FaultNet {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn devices(&self) -> usize {
        self.inner.devices()
    }

    fn properties(&self, device: usize) -> Result<Properties, NetError> {
        self.inner.properties(device)
    }

    fn max_devices_per_nic(&self) -> usize {
        self.inner.max_devices_per_nic()
    }

    fn make_virtual_device(&self, members: &[usize]) -> Result<usize, NetError> {
        self.inner.make_virtual_device(members)
    }

    fn listen(&self, device: usize) -> Result<Box<dyn Listener>, NetError> {
        let inner = self.inner.listen(device)?;
        Ok(Box::new(Faulty { inner, plans: self.plans.clone(), net: self.name().to_owned() }))
    }

    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn Connecting>, NetError> {
        let inner = self.inner.connect(device, handle)?;
        Ok(Box::new(Faulty { inner, plans: self.plans.clone(), net: self.name().to_owned() }))
    }
}

/// Makes the plans of connections.
#[derive(Clone, Debug)]
struct FaultPlans {
    faults: Faults,
    /// How many there are.
    made: Arc<AtomicU64>,
}

impl FaultPlans {
    fn plan(&self, net: &str) -> FaultPlan {
        // Numbers, and nothing else is ordered by them.
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        debug!("NET/{net}: connection {number} has faults {}", self.faults);
        FaultPlan {
            net: net.to_owned(),
            faults: self.faults.clone(),
            random: self.faults.seed ^ number.wrapping_mul(0xd134_2543_de82_ef95),
            messages: 0,
            corrupted: false,
        }
    }
}

/// A listener, or a connection that is being made.
struct Faulty<T: ?Sized> {
    plans: FaultPlans,
    net: String,
    inner: Box<T>,
}

impl Listener for Faulty<dyn Listener> {
    fn handle(&self) -> &[u8] {
        self.inner.handle()
    }

    fn accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        let comm = self.inner.accept()?;
        Ok(comm.map(|comm| Box::new(FaultyComm::new(comm, self.plans.plan(&self.net))) as _))
    }
}

impl Connecting for Faulty<dyn Connecting> {
    fn poll(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        let comm = self.inner.poll()?;
        Ok(comm.map(|comm| {
            let mut plan = self.plans.plan(&self.net);
            // Those are the receiver's.
            (plan.faults.drop_after, plan.faults.corrupt_after) = (None, None);
            Box::new(FaultyComm::new(comm, plan)) as _
        }))
    }
}

/// The faults of one end of a connection.
#[derive(Debug)]
struct FaultPlan {
    net: String,
    faults: Faults,
    random: u64,
    /// Messages so far.
    messages: u64,
    corrupted: bool,
}

impl FaultPlan {
    /// A random number less than `n`, or 0 (SplitMix64).
    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).checked_rem(n).unwrap_or(0)
    }

    /// Whether the next message is one too many.
    fn cuts(&self) -> bool {
        self.faults.cut_after.is_some_and(|after| self.messages >= after)
    }

    fn error(&self, operation: &'static str, reason: String) -> NetError {
        NetError::new(&self.net, operation, reason)
    }

    /// A request that the network below has taken.
    fn hold(&mut self, inner: Request, buffers: &[RecvBuffer], kind: Kind) -> HeldRequest {
        let number = self.messages;
        self.messages += u64::from(kind == Kind::Message);
        let mut held = HeldRequest {
            inner,
            number,
            kind,
            buffers: buffers.to_vec(),
            sizes: None,
            tests: 0,
            until: None,
        };
        match self.faults.delay {
            None => {}
            Some(Delay::Tests(most)) => held.tests = self.below(u64::from(most) + 1),
            Some(Delay::Time(most)) => {
                let most = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
                let delay = Duration::from_micros(self.below(most.saturating_add(1)));
                held.until = Instant::now().checked_add(delay);
            }
        }
        held
    }

    /// Whether a message never arrives.
    fn drops(&self, held: &HeldRequest) -> bool {
        let after = self.faults.drop_after;
        held.kind == Kind::Message && after.is_some_and(|after| held.number >= after)
    }

    /// Changes a bit of what has arrived, if it is time.
    fn corrupt(&mut self, held: &HeldRequest, sizes: &[usize]) {
        let after = self.faults.corrupt_after;
        if self.corrupted || after.is_none_or(|after| held.number < after) {
            return;
        }
        let arrived = held.buffers.iter().zip(sizes).find(|&(_, &size)| size > 0);
        if let Some((buffer, &size)) = arrived {
            let (place, bit) = (self.below(size as u64), self.below(8));
            debug!("NET/{}: bit {bit} of byte {place} of message {}", self.net, held.number);
            let at = buffer.address.wrapping_add(place as usize);
            // SAFETY: in the buffer that `irecv`'s caller leaves to the connection until the request is done. The host's:
            // of other memory the request has none.
            unsafe { *at ^= 1 << bit };
            self.corrupted = true;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    Flush,
}

/// A request that the caller has not had back.
#[derive(Debug)]
struct HeldRequest {
    inner: Request,
    number: u64,
    kind: Kind,
    /// Those of the host's memory.
    buffers: Vec<RecvBuffer>,
    /// Once it is done below.
    sizes: Option<Vec<usize>>,
    /// Tests that it has to wait after that.
    tests: u64,
    /// When it may be done.
    until: Option<Instant>,
}

impl HeldRequest {
    /// Whether the caller may have it, a test after it is done below.
    fn is_due(&mut self) -> bool {
        if self.tests > 0 {
            self.tests -= 1;
            return false;
        }
        self.until.is_none_or(|until| Instant::now() >= until)
    }
}

/// An end of a connection, and what is held back.
struct FaultyComm<T: ?Sized> {
    /// `None` when it is cut.
    inner: Option<Box<T>>,
    plan: FaultPlan,
    held: HashMap<u64, HeldRequest>,
    /// The number of the next request. Those of the network below may be used again while we hold one back.
    next: u64,
    /// Memory that is not the host's: nothing is corrupted there.
    elsewhere: Vec<MemoryHandle>,
}

// SAFETY: the buffers' addresses are used as `irecv`'s contract says, from whatever thread; all else may be sent.
unsafe impl<T: ?Sized + Send> Send for FaultyComm<T> {}

impl<T: ?Sized + fmt::Debug> fmt::Debug for FaultyComm<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comm").field("inner", &self.inner).field("plan", &self.plan).finish()
    }
}

impl<T: ?Sized> FaultyComm<T> {
    fn new(inner: Box<T>, plan: FaultPlan) -> FaultyComm<T> {
        FaultyComm {
            inner: Some(inner),
            plan,
            held: HashMap::new(),
            next: 0,
            elsewhere: Vec::new(),
        }
    }

    /// The connection, if it is not cut, with its plan.
    fn inner(&mut self, operation: &'static str) -> Result<(&mut T, &mut FaultPlan), NetError> {
        match &mut self.inner {
            Some(inner) => Ok((inner, &mut self.plan)),
            None => {
                let after = self.plan.faults.cut_after.unwrap_or(0);
                let reason = format!("cut on purpose, after {after} messages");
                Err(self.plan.error(operation, reason))
            }
        }
    }

    /// The same for a message that begins, at which the connection may be cut. `None`: there is no room for more.
    fn begin(&mut self, operation: &'static str) -> Result<Option<&mut T>, NetError> {
        if self.plan.cuts() {
            self.inner = None; // dropped, so that the other end learns of it
        }
        let full = self.held.len() >= MAX_REQUESTS;
        self.inner(operation).map(|(inner, _)| (!full).then_some(inner))
    }

    fn hold(&mut self, inner: Request, buffers: &[RecvBuffer], kind: Kind) -> Request {
        let host: Vec<_> =
            buffers.iter().copied().filter(|b| !self.elsewhere.contains(&b.memory)).collect();
        // Sizes are matched to buffers by their order: with some left out there would be none.
        let host = if host.len() == buffers.len() { host } else { Vec::new() };
        let held = self.plan.hold(inner, &host, kind);
        let number = self.next;
        self.next += 1;
        self.held.insert(number, held);
        Request(number)
    }

    /// The sizes of a request that the caller may have.
    fn done(
        &mut self,
        request: Request,
        test: impl FnOnce(&mut T, Request) -> Result<Option<Vec<usize>>, NetError>,
    ) -> Result<Option<Vec<usize>>, NetError> {
        self.inner("test")?;
        let (Some(inner), plan) = (&mut self.inner, &mut self.plan) else { return Ok(None) };
        let Some(held) = self.held.get_mut(&request.0) else {
            return Err(plan.error("test", format!("request {} is not under way", request.0)));
        };
        if held.sizes.is_none() {
            held.sizes = test(inner, held.inner)?;
        }
        if held.sizes.is_none() || plan.drops(held) || !held.is_due() {
            return Ok(None);
        }
        let Some(held) = self.held.remove(&request.0) else { return Ok(None) };
        let sizes = held.sizes.clone().unwrap_or_default();
        plan.corrupt(&held, &sizes);
        Ok(Some(sizes))
    }

    fn registered(&mut self, memory: MemoryHandle, kind: MemoryKind) -> MemoryHandle {
        self.elsewhere.retain(|&old| old != memory);
        if kind != MemoryKind::Host {
            self.elsewhere.push(memory);
        }
        memory
    }
}

impl SendComm for FaultyComm<dyn SendComm> {
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        // SAFETY: the caller's.
        let memory = unsafe { self.inner("register")?.0.register(address, bytes, kind)? };
        Ok(self.registered(memory, kind))
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
        self.inner("deregister")?.0.deregister(memory)
    }

    unsafe fn isend(
        &mut self,
        address: *const u8,
        bytes: usize,
        tag: u32,
        memory: MemoryHandle,
    ) -> Result<Option<Request>, NetError> {
        let Some(inner) = self.begin("isend")? else { return Ok(None) };
        // SAFETY: the caller's.
        let request = unsafe { inner.isend(address, bytes, tag, memory)? };
        Ok(request.map(|request| self.hold(request, &[], Kind::Message)))
    }

    fn cork(&mut self, corked: bool) {
        // What is wrong with the connection the next call tells.
        if let Ok(inner) = self.inner("cork") {
            inner.0.cork(corked);
        }
    }

    fn test(&mut self, request: Request) -> Result<bool, NetError> {
        let done = self
            .done(request, |inner, request| inner.test(request).map(|done| done.then(Vec::new)))?;
        Ok(done.is_some())
    }
}

impl RecvComm for FaultyComm<dyn RecvComm> {
    unsafe fn register(
        &mut self,
        address: *mut u8,
        bytes: usize,
        kind: MemoryKind,
    ) -> Result<MemoryHandle, NetError> {
        // SAFETY: the caller's.
        let memory = unsafe { self.inner("register")?.0.register(address, bytes, kind)? };
        Ok(self.registered(memory, kind))
    }

    fn deregister(&mut self, memory: MemoryHandle) -> Result<(), NetError> {
        self.inner("deregister")?.0.deregister(memory)
    }

    unsafe fn irecv(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        let Some(inner) = self.begin("irecv")? else { return Ok(None) };
        // SAFETY: the caller's.
        let request = unsafe { inner.irecv(buffers)? };
        Ok(request.map(|request| self.hold(request, buffers, Kind::Message)))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool, NetError> {
        let room = sizes.len();
        let done = self.done(request, |inner, request| {
            let mut sizes = vec![0; room];
            inner.test(request, &mut sizes).map(|done| done.then_some(sizes))
        })?;
        if let Some(done) = &done {
            sizes.iter_mut().zip(done).for_each(|(size, done)| *size = *done);
        }
        Ok(done.is_some())
    }

    unsafe fn iflush(&mut self, buffers: &[RecvBuffer]) -> Result<Option<Request>, NetError> {
        // SAFETY: the caller's.
        let request = unsafe { self.inner("iflush")?.0.iflush(buffers)? };
        Ok(request.map(|request| self.hold(request, &[], Kind::Flush)))
    }
}
