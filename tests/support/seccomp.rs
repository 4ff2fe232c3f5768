//! System calls that are refused, as by a container (seccomp(2)); root has no other limit.

/// From here on these calls are refused with `errno`, to this thread and to those that it starts.
pub(crate) fn refuse(calls: &[libc::c_long], errno: i32) {
    let jump = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    // `seccomp_data` begins with the call's number.
    let mut filter = vec![jump(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    let last = calls.len() as u8;
    for (i, &call) in (1..).zip(calls) {
        // Over the other calls, and over what allows.
        filter.push(jump(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            last - i + 1,
            0,
            call as u32,
        ));
    }
    for result in [libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_ERRNO | errno as u32] {
        filter.push(jump(libc::BPF_RET | libc::BPF_K, 0, 0, result));
    }
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter are there while the system copies them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}
