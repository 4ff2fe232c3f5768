//! What an instruction does to memory: how much of which, and in what order with the rest.
//!
//! Sources: PTX ISA 9.0, 5.1 (state spaces), chapter 8 (memory consistency model), 9.7.9.8 (`ld`), 9.7.9.11 (`st`),
//! 9.7.13.4 (`membar`, `fence`), 9.7.13.5 (`atom`).

use std::fmt;

use super::class::{Class, class};
use crate::syntax::{Instruction, Operand};
use crate::types::Type;

macro_rules! named {
    ($(#[$outer:meta])* $enum:ident { $($(#[$doc:meta])* $name:ident $text:literal;)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $enum {
            $($(#[$doc])* $name,)*
        }

        impl $enum {
            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($enum::$name => $text,)* }
            }
        }

        impl fmt::Display for $enum {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        #[cfg(feature = "inspect")]
        impl serde::Serialize for $enum {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.name())
            }
        }
    };
}
named! {
    /// A state space (5.1).
    Space {
        /// Any of them: the address says which.
        Generic "generic";
        /// The device's memory.
        Global "global";
        /// A block's own memory.
        Shared "shared";
        /// Shared memory of any block of the cluster.
        Cluster "shared::cluster";
        /// A thread's own memory.
        Local "local";
        /// Constants.
        Const "const";
        /// Parameters of kernels and functions.
        Param "param";
    }
}
named! {
    /// How an access is ordered with others (8.3, 8.4).
    Order {
        /// Not at all: who shares what it touches synchronizes elsewhere.
        Weak "weak";
        /// `.volatile`: relaxed at system scope, and never merged or left out.
        Volatile "volatile";
        /// Of one location, as all see it; nothing about others.
        Relaxed "relaxed";
        /// What comes after stays after.
        Acquire "acquire";
        /// What comes before stays before.
        Release "release";
        /// Both.
        AcqRel "acq_rel";
        /// Both, and in one order that all agree on.
        Sc "sc";
    }
}
named! {
    /// Among which threads an order counts (8.5).
    Scope {
        /// The block.
        Cta "cta";
        /// The cluster.
        Cluster "cluster";
        /// The device.
        Gpu "gpu";
        /// All, host included.
        Sys "sys";
    }
}

impl Order {
    /// Whether it is a strong one (8.4.2): all but weak.
    #[must_use]
    pub const fn is_strong(self) -> bool {
        !matches!(self, Order::Weak)
    }

    /// Whether what comes after stays after.
    #[must_use]
    pub const fn acquires(self) -> bool {
        matches!(self, Order::Acquire | Order::AcqRel | Order::Sc)
    }

    /// Whether what comes before stays before.
    #[must_use]
    pub const fn releases(self) -> bool {
        matches!(self, Order::Release | Order::AcqRel | Order::Sc)
    }
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read.
    Load,
    /// Written.
    Store,
    /// Both in one, with the old value handed back (`atom`).
    Atomic,
    /// Both in one (`red`).
    Reduce,
    /// Read here, written to another space, later.
    Copy {
        /// Where to.
        to: Space,
    },
}

/// An access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What is done.
    pub access: Access,
    /// Where.
    pub space: Space,
    /// In what order.
    pub order: Order,
    /// Among whom the order counts; `None` for weak accesses.
    pub scope: Option<Scope>,
    /// Elements: 1, or those of `.v2`, `.v4`, `.v8`.
    pub vector: u32,
    /// What an element is.
    pub ty: Option<Type>,
    /// Bytes of a lane; `None` where registers say how many.
    pub bytes: Option<u32>,
}

/// What an instruction does to memory; `None` for those that do nothing to it, for textures and for
/// barriers in memory. An asynchronous copy is told of where it reads.
#[must_use]
pub fn memory(instruction: &Instruction<'_>) -> Option<Memory> {
    let mut spaces = instruction.modifiers.iter().filter_map(|m| space(m.text));
    let copies = (instruction.opcode.text == "cp").then_some(()).and_then(|()| {
        // cp.async.ca.shared.global: where to, where from.
        let to = spaces.next()?;
        Some((Access::Copy { to }, spaces.next()?))
    });
    let (access, space) = match class(instruction) {
        Class::Copy => copies?,
        Class::Load => (Access::Load, spaces.next().unwrap_or(Space::Generic)),
        Class::Store => (Access::Store, spaces.next().unwrap_or(Space::Generic)),
        Class::Atomic if instruction.opcode.text == "atom" => {
            (Access::Atomic, spaces.next().unwrap_or(Space::Generic))
        }
        Class::Atomic => (Access::Reduce, spaces.next().unwrap_or(Space::Generic)),
        Class::Matrix => match instruction.opcode.text {
            "ldmatrix" => (Access::Load, Space::Shared),
            "stmatrix" => (Access::Store, Space::Shared),
            _ => return None,
        },
        _ => return None,
    };
    let order = order(instruction).unwrap_or(match access {
        Access::Atomic | Access::Reduce => Order::Relaxed,
        _ => Order::Weak,
    });
    let scope = match order {
        Order::Weak => None,
        Order::Volatile => Some(Scope::Sys),
        _ => Some(scope(instruction).unwrap_or(Scope::Gpu)),
    };
    let vector = if instruction.has("v2") {
        2
    } else if instruction.has("v4") {
        4
    } else if instruction.has("v8") {
        8
    } else {
        1
    };
    let ty = instruction.modifiers.iter().rev().find_map(|m| Type::from_name(m));
    let bytes = match (access, instruction.opcode.text) {
        (Access::Copy { .. }, _) => match instruction.operands.get(2) {
            Some(Operand::Integer(bytes, _)) => u32::try_from(*bytes).ok(),
            _ => None,
        },
        // Eight rows of 16 bytes a matrix, over 32 lanes; other shapes are wider.
        (_, "ldmatrix" | "stmatrix") => {
            let matrices = [("x1", 1), ("x2", 2), ("x4", 4)];
            let of = |(name, n): (&str, u32)| instruction.has(name).then_some(4 * n);
            matrices.into_iter().find_map(of).filter(|_| instruction.has("m8n8"))
        }
        (_, "st") if instruction.has("bulk") => None,
        _ => ty.map(|ty| ty.bytes() * vector),
    };
    Some(Memory { access, space, order, scope, vector, ty, bytes })
}

fn space(modifier: &str) -> Option<Space> {
    Some(match modifier {
        "global" => Space::Global,
        "shared" | "shared::cta" => Space::Shared,
        "shared::cluster" => Space::Cluster,
        "local" => Space::Local,
        "const" => Space::Const,
        "param" | "param::entry" | "param::func" => Space::Param,
        _ => return None,
    })
}

fn order(instruction: &Instruction<'_>) -> Option<Order> {
    instruction.modifiers.iter().find_map(|m| {
        Some(match m.text {
            "weak" => Order::Weak,
            "volatile" => Order::Volatile,
            "relaxed" => Order::Relaxed,
            "acquire" => Order::Acquire,
            "release" => Order::Release,
            "acq_rel" => Order::AcqRel,
            "sc" => Order::Sc,
            _ => return None,
        })
    })
}

fn scope(instruction: &Instruction<'_>) -> Option<Scope> {
    instruction.modifiers.iter().find_map(|m| {
        Some(match m.text {
            "cta" => Scope::Cta,
            "cluster" => Scope::Cluster,
            "gpu" | "gl" => Scope::Gpu, // membar.gl
            "sys" => Scope::Sys,
            _ => return None,
        })
    })
}

/// A fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// What it orders.
    pub order: Order,
    /// Among whom.
    pub scope: Scope,
    /// Whether it is between ways to reach memory (`.proxy`), not between threads.
    pub proxy: bool,
}

/// What a fence orders; `None` for other instructions. `membar` is `fence.sc` (9.7.13.4), and a fence that
/// says no order is `acq_rel`.
#[must_use]
pub fn fence(instruction: &Instruction<'_>) -> Option<Fence> {
    let default = match instruction.opcode.text {
        "membar" => Order::Sc,
        "fence" => Order::AcqRel,
        _ => return None,
    };
    Some(Fence {
        order: order(instruction).unwrap_or(default),
        scope: scope(instruction).unwrap_or(Scope::Sys),
        proxy: instruction.has("proxy"),
    })
}
