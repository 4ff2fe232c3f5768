//! A network that reduces, in software: for the members of one process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bytemuck::Zeroable as _;
use ferroccl_device::abi::{DataType, ReduceOp, Work};
use ferroccl_device::args::KernelArgs;
use ferroccl_device::element::{Bf16, Element, F8E4M3, F8E5M2, F16};
use ferroccl_device::reduce::{Any, Reducer};

use super::{CollNet, CollNetComm, CollNetListener, CollNetRequest};
use crate::NetError;
use crate::sync::lock;

const NAME: &str = "software";

/// Calls of a member that may be under way at a time.
const IN_FLIGHT: usize = 8;

/// A switch in this process's memory, which combines the members' values in their order, two at a time. Slow: it is there
/// for tests, and to try what needs such a network.
///
/// ```
/// use ferroccl_device::abi::{DataType, ReduceOp};
/// use ferroccl_proxy::collnet::{CollNet, CollNetComm, SoftwareCollNet};
///
/// let net = SoftwareCollNet::new();
/// let listeners = [net.listen()?, net.listen()?];
/// let handles: Vec<_> = listeners.iter().map(|l| l.handle()).collect();
/// let mut members = Vec::new();
/// for (rank, listener) in (0..).zip(listeners) {
///     members.push(listener.connect(&handles, rank)?);
/// }
/// let mut values = [[1i32, 2], [10, 20]];
/// let mut requests = Vec::new();
/// for (member, values) in members.iter_mut().zip(&mut values) {
///     let at = values.as_mut_ptr().cast::<u8>();
///     // SAFETY: two elements, which nobody else touches.
///     let request = unsafe { member.iallreduce(at, at, 2, DataType::I32, ReduceOp::Sum)? };
///     requests.push(request.expect("nothing else is under way"));
/// }
/// for request in &mut requests {
///     assert!(request.test()?);
/// }
/// assert_eq!(values, [[11, 22]; 2]);
/// # Ok::<(), ferroccl_proxy::NetError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SoftwareCollNet(Arc<SoftwareSwitch>);

#[derive(Debug, Default)]
struct SoftwareSwitch {
    handles: AtomicU64,
    /// By their members' handles.
    groups: Mutex<HashMap<Vec<u64>, Weak<SwitchGroup>>>,
}

#[derive(Debug)]
struct SwitchGroup {
    members: usize,
    calls: Mutex<HashMap<u64, ReduceCall>>,
}

/// What a call of all members is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CallSignature {
    count: usize,
    data_type: DataType,
    op: ReduceOp,
}

impl std::fmt::Display for CallSignature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} elements of {}", self.op, self.count, self.data_type)
    }
}

/// A call that some have made.
#[derive(Debug)]
struct ReduceCall {
    signature: CallSignature,
    /// Of each member, its values.
    parts: Vec<Option<Vec<u64>>>,
    /// Once all have come.
    result: Option<Result<Arc<Vec<u64>>, NetError>>,
    /// Members that have not fetched it, or given up.
    left: usize,
}

impl SoftwareCollNet {
    /// A switch with no groups.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl CollNet for SoftwareCollNet {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reduce_support(&self, _: DataType, op: ReduceOp) -> bool {
        matches!(op, ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Min | ReduceOp::Max)
    }

    fn listen(&self) -> Result<Box<dyn CollNetListener>, NetError> {
        // Numbers, and nothing else is ordered by them.
        let handle = self.0.handles.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(SoftwareListener { switch: Arc::clone(&self.0), handle }))
    }
}

struct SoftwareListener {
    switch: Arc<SoftwareSwitch>,
    handle: u64,
}

impl CollNetListener for SoftwareListener {
    fn handle(&self) -> Vec<u8> {
        // The process, too: another's switch is none of ours.
        [u64::from(std::process::id()), self.handle].map(u64::to_le_bytes).concat()
    }

    fn connect(
        self: Box<Self>,
        handles: &[Vec<u8>],
        rank: u32,
    ) -> Result<Box<dyn CollNetComm>, NetError> {
        let error = |reason: String| NetError::new(NAME, "connect", reason);
        let mut key = Vec::with_capacity(handles.len());
        for (peer, handle) in (0..).zip(handles) {
            let words: [u8; 16] = handle.as_slice().try_into().map_err(|_| {
                error(format!("a handle of {} bytes", handle.len())).with_peer(peer)
            })?;
            let [process, number]: [u64; 2] = bytemuck::cast(words);
            if process != u64::from(std::process::id()) {
                return Err(error(format!("is in process {process}, not in ours")).with_peer(peer));
            }
            key.push(number);
        }
        if key.get(rank as usize) != Some(&self.handle) {
            return Err(error(format!("the handle of rank {rank} of {} is not ours", key.len())));
        }
        let mut groups = lock(&self.switch.groups);
        groups.retain(|_, group| group.strong_count() > 0);
        let group = groups.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            Arc::new(SwitchGroup { members: handles.len(), calls: Mutex::default() })
        });
        groups.insert(key, Arc::downgrade(&group));
        Ok(Box::new(SoftwareComm {
            group,
            rank: rank as usize,
            next: 0,
            under_way: Arc::default(),
        }))
    }
}

#[derive(Debug)]
struct SoftwareComm {
    group: Arc<SwitchGroup>,
    rank: usize,
    /// The number of the next call.
    next: u64,
    /// A clone for each request.
    under_way: Arc<()>,
}

impl CollNetComm for SoftwareComm {
    unsafe fn iallreduce(
        &mut self,
        send: *const u8,
        recv: *mut u8,
        count: usize,
        data_type: DataType,
        op: ReduceOp,
    ) -> Result<Option<Box<dyn CollNetRequest>>, NetError> {
        if Arc::strong_count(&self.under_way) > IN_FLIGHT {
            return Ok(None);
        }
        let bytes = count * data_type.size();
        let mut values = vec![0u64; bytes.div_ceil(8)];
        // SAFETY: the caller's; so many bytes are in the words.
        unsafe {
            send.copy_to_nonoverlapping(values.as_mut_ptr().cast(), bytes);
        }
        let signature = CallSignature { count, data_type, op };
        let (number, members) = (self.next, self.group.members);
        self.next += 1;
        let mut calls = lock(&self.group.calls);
        let call = calls.entry(number).or_insert_with(|| ReduceCall {
            signature,
            parts: vec![None; members],
            result: None,
            left: members,
        });
        if call.signature != signature {
            let reason =
                format!("call {number} is {signature}, another member's {}", call.signature);
            call.result = Some(Err(NetError::new(NAME, "iallreduce", reason)));
        }
        call.parts[self.rank] = Some(values);
        if call.result.is_none() && call.parts.iter().all(Option::is_some) {
            let parts: Vec<Vec<u64>> = call.parts.drain(..).flatten().collect();
            call.result = Some(Ok(Arc::new(combined(signature, parts))));
        }
        drop(calls);
        let (group, under_way) = (Arc::clone(&self.group), Arc::clone(&self.under_way));
        let recv = ResultAddress(recv);
        Ok(Some(Box::new(Request {
            group,
            number,
            recv,
            bytes,
            done: false,
            _under_way: under_way,
        })))
    }
}

struct Request {
    group: Arc<SwitchGroup>,
    number: u64,
    recv: ResultAddress,
    bytes: usize,
    done: bool,
    _under_way: Arc<()>,
}

/// Where a result goes.
struct ResultAddress(*mut u8);

// SAFETY: whoever made the call lets nobody else touch it until the request is done.
unsafe impl Send for ResultAddress {}

impl CollNetRequest for Request {
    fn test(&mut self) -> Result<bool, NetError> {
        if self.done {
            return Ok(true);
        }
        let calls = lock(&self.group.calls);
        let result = calls.get(&self.number).and_then(|call| call.result.clone());
        drop(calls);
        let Some(result) = result else { return Ok(false) };
        self.done = true;
        self.group.fetched(self.number);
        let values = result?;
        // SAFETY: `iallreduce`'s contract; so many bytes are in the words.
        unsafe { values.as_ptr().cast::<u8>().copy_to_nonoverlapping(self.recv.0, self.bytes) };
        Ok(true)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.done {
            self.group.fetched(self.number);
        }
    }
}

impl SwitchGroup {
    /// A member has no more to do with a call; after the last the call is forgotten.
    fn fetched(&self, number: u64) {
        let mut calls = lock(&self.calls);
        if let Some(call) = calls.get_mut(&number) {
            call.left -= 1;
            if call.left == 0 {
                calls.remove(&number);
            }
        }
    }
}

/// All parts combined in their order, word by word.
fn combined(signature: CallSignature, parts: Vec<Vec<u64>>) -> Vec<u64> {
    fn fold<T: Element>(work: &Work, parts: Vec<Vec<u64>>) -> Vec<u64> {
        // SAFETY: the work is valid, and its scalar no address.
        let reducer = unsafe { Reducer::<T, Any>::of(KernelArgs::new(work)) };
        let add = |mut sum: Vec<u64>, part: Vec<u64>| {
            for (sum, part) in sum.iter_mut().zip(part) {
                *sum = reducer.combine_word(*sum, part);
            }
            sum
        };
        parts.into_iter().reduce(add).unwrap_or_default()
    }
    let mut work = Work::zeroed();
    work.signature.call = (signature.op as u64) << 16;
    let fold = match signature.data_type {
        DataType::I8 => fold::<i8>,
        DataType::U8 => fold::<u8>,
        DataType::I32 => fold::<i32>,
        DataType::U32 => fold::<u32>,
        DataType::I64 => fold::<i64>,
        DataType::U64 => fold::<u64>,
        DataType::F16 => fold::<F16>,
        DataType::Bf16 => fold::<Bf16>,
        DataType::F32 => fold::<f32>,
        DataType::F64 => fold::<f64>,
        DataType::F8E4M3 => fold::<F8E4M3>,
        DataType::F8E5M2 => fold::<F8E5M2>,
    };
    fold(&work, parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(net: &SoftwareCollNet, n: u32) -> Vec<Box<dyn CollNetComm>> {
        let listeners: Vec<_> = (0..n).map(|_| net.listen().unwrap()).collect();
        let handles: Vec<_> = listeners.iter().map(|l| l.handle()).collect();
        (0..).zip(listeners).map(|(rank, l)| l.connect(&handles, rank).unwrap()).collect()
    }

    unsafe fn call(
        member: &mut Box<dyn CollNetComm>,
        values: &mut [u16],
        op: ReduceOp,
    ) -> Option<Box<dyn CollNetRequest>> {
        let (at, n) = (values.as_mut_ptr().cast::<u8>(), values.len());
        // SAFETY: the caller's.
        unsafe { member.iallreduce(at, at, n, DataType::F16, op) }.unwrap()
    }

    #[test]
    fn two_groups_of_odd_sizes_at_a_time() {
        let net = SoftwareCollNet::new();
        let mut groups = [group(&net, 3), group(&net, 2)];
        // 1.0, 2.0, 4.0 as halves.
        let mut values = [[0x3c00u16; 5], [0x4000; 5], [0x4400; 5]];
        let mut requests = Vec::new();
        for members in &mut groups {
            for (member, values) in members.iter_mut().zip(&mut values) {
                // SAFETY: the values outlive the requests, and calls copy what they send.
                requests.push(unsafe { call(member, values, ReduceOp::Max) }.unwrap());
            }
        }
        // The second group's result, the first's is fetched by nobody.
        for request in requests.drain(3..) {
            let mut request = request;
            assert!(request.test().unwrap() && request.test().unwrap());
        }
        assert_eq!(values, [[0x4000; 5], [0x4000; 5], [0x4400; 5]]);
        drop(requests);
        for group in lock(&net.0.groups).values() {
            assert!(lock(&group.upgrade().unwrap().calls).is_empty());
        }
        drop(groups);
        group(&net, 1);
        assert_eq!(lock(&net.0.groups).len(), 1, "what nobody is in is forgotten");
    }

    #[test]
    fn a_member_waits_for_the_others_and_has_so_many_under_way() {
        let net = SoftwareCollNet::new();
        let mut members = group(&net, 2);
        let mut values = [1u16; 1];
        let mut requests = Vec::new();
        // SAFETY: as above.
        while let Some(request) = unsafe { call(&mut members[0], &mut values, ReduceOp::Sum) } {
            requests.push(request);
        }
        assert_eq!(requests.len(), IN_FLIGHT);
        assert!(!requests[0].test().unwrap());
        let mut other = [2u16; 1];
        // SAFETY: as above.
        let mut theirs = unsafe { call(&mut members[1], &mut other, ReduceOp::Sum) }.unwrap();
        assert!(theirs.test().unwrap() && requests[0].test().unwrap());
        assert_eq!((values, other), ([3], [3]), "the smallest halves add up like integers");
    }

    #[test]
    fn calls_that_differ_fail() {
        let net = SoftwareCollNet::new();
        let mut members = group(&net, 2);
        let mut values = [[1u16; 2], [2; 2]];
        let [a, b] = &mut values;
        // SAFETY: as above.
        let mut ours = unsafe { call(&mut members[0], a, ReduceOp::Sum) }.unwrap();
        // SAFETY: as above.
        let mut theirs = unsafe { call(&mut members[1], b, ReduceOp::Min) }.unwrap();
        for request in [&mut ours, &mut theirs] {
            let text = request.test().unwrap_err().to_string();
            assert!(text.starts_with("software: iallreduce: call 0 is "), "{text}");
            for call in ["min of 2 elements of half", "sum of 2 elements of half"] {
                assert!(text.contains(call), "{text}");
            }
        }
    }

    #[test]
    fn handles_of_others_are_refused() {
        let net = SoftwareCollNet::new();
        let connect = |handles: &[Vec<u8>], rank| {
            net.listen().unwrap().connect(handles, rank).map(|_| ()).unwrap_err().to_string()
        };
        assert!(connect(&[vec![1, 2]], 0).ends_with("with rank 0: a handle of 2 bytes"));
        assert!(connect(&[vec![0; 16]], 0).contains("is in process 0, not in ours"));
        assert!(connect(&[], 7).ends_with("the handle of rank 7 of 0 is not ours"));
    }
}
