//! The table of kernels, with whatever features it is built with.

use std::collections::BTreeSet;

use ferroccl_device::abi::{Algorithm, Collective, DataType, ProtocolId, ReduceOp};
use ferroccl_device::kernels::{all, left_out, lookup};

#[test]
fn every_call_has_a_kernel_or_a_feature_that_is_missing() {
    for &protocol in ProtocolId::ALL {
        for &op in ReduceOp::ALL {
            for &element in DataType::ALL {
                let (collective, algorithm) = (Collective::AllReduce, Algorithm::Ring);
                let kernel = lookup(collective, algorithm, protocol, op, element);
                let missing = left_out(collective, algorithm, element);
                assert_eq!(kernel.is_none(), missing.is_some(), "{protocol} {op} {element}");
            }
        }
    }
}

#[test]
fn every_kernel_has_a_name_of_its_own() {
    let names: BTreeSet<_> = all().map(|kernel| kernel.name).collect();
    assert_eq!(names.len(), all().count());
}
