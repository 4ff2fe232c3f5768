//! The values of perf's flags: closed sets by their names, and what has a syntax of its own.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use ferroccl::{Algorithm, Collective, DataType, ProtocolId, ReduceOp};

use super::operation::Operation;
use crate::registered;

/// What `--runtime` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RuntimeKind {
    /// Coroutines on this machine's cores
    Cpu,
    /// The PTX that a GPU would get, in an emulator: what it does is counted
    Ptx,
    /// GPUs: local ranks take them in turn, so that several may share one (CUDA_VISIBLE_DEVICES)
    Cuda,
}

impl fmt::Display for RuntimeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuntimeKind::Cpu => f.write_str("cpu"),
            RuntimeKind::Ptx => f.write_str("ptx"),
            RuntimeKind::Cuda => f.write_str("cuda"),
        }
    }
}

/// How the emulator goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PtxSchedule {
    /// Warps take turns on one thread: the same every time
    Lockstep,
    /// Blocks on threads, as fast as it goes
    Threads,
}

impl fmt::Display for PtxSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PtxSchedule::Lockstep => f.write_str("lockstep"),
            PtxSchedule::Threads => f.write_str("threads"),
        }
    }
}

/// One value of a set, or every one of them (`all`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice<T>(pub(crate) Vec<T>);

/// A root, or every rank as root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// This rank.
    Rank(u32),
    /// Each rank in turn.
    All,
}

impl FromStr for Root {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("all") {
            return Ok(Root::All);
        }
        text.parse().map(Root::Rank).map_err(|_| "neither a rank nor \"all\"".into())
    }
}

/// How the ranks' times become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Average {
    /// Rank 0's
    #[value(name = "0", alias = "rank0")]
    Rank0,
    /// The mean
    #[value(name = "1", alias = "avg")]
    Mean,
    /// The shortest
    #[value(name = "2", alias = "min")]
    Min,
    /// The longest
    #[value(name = "3", alias = "max")]
    Max,
}

/// What is waited for between calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Blocking {
    /// Nothing
    #[value(name = "0")]
    Nothing,
    /// Each call, and then all ranks
    #[value(name = "1")]
    CallAndRanks,
    /// Each call
    #[value(name = "2")]
    Call,
    /// Each iteration, and then, untimed, all ranks
    #[value(name = "3")]
    Iteration,
}

impl Average {
    /// One time from the ranks', which begin with rank 0's.
    pub(crate) fn of(self, times: &[f64]) -> f64 {
        match self {
            Average::Rank0 => times.first().copied().unwrap_or(0.0),
            Average::Mean => times.iter().sum::<f64>() / times.len().max(1) as f64,
            Average::Min => times.iter().copied().fold(f64::INFINITY, f64::min),
            Average::Max => times.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// A closed set of the library, for clap: its names are listed in the help and in errors.
pub(crate) trait Named: Copy + Send + Sync + 'static {
    /// The library's.
    const ALL: &'static [Self];
    /// All of them, those of other crates last.
    fn all() -> Vec<Self> {
        Self::ALL.to_vec()
    }
    /// NCCL's name.
    fn name(self) -> &'static str;
    /// Other names that are understood.
    fn aliases(self) -> &'static [&'static str] {
        &[]
    }
}

macro_rules! named {
    ($($set:ident),*) => { $(
        impl Named for $set {
            const ALL: &'static [Self] = $set::ALL;
            fn name(self) -> &'static str {
                $set::name(self)
            }
        }
    )* };
}
named!(Collective, Operation, ReduceOp);

impl Named for Algorithm {
    const ALL: &'static [Self] = Algorithm::ALL;

    fn all() -> Vec<Self> {
        registered::algorithms()
    }

    fn name(self) -> &'static str {
        Algorithm::name(self)
    }
}

impl Named for ProtocolId {
    const ALL: &'static [Self] = ProtocolId::ALL;

    fn all() -> Vec<Self> {
        registered::protocols()
    }

    fn name(self) -> &'static str {
        ProtocolId::name(self)
    }
}

impl Named for DataType {
    const ALL: &'static [Self] = DataType::ALL;

    fn name(self) -> &'static str {
        DataType::name(self)
    }

    fn aliases(self) -> &'static [&'static str] {
        match self {
            DataType::I8 => &["i8", "char"],
            DataType::U8 => &["u8"],
            DataType::I32 => &["i32", "int"],
            DataType::U32 => &["u32"],
            DataType::I64 => &["i64"],
            DataType::U64 => &["u64"],
            DataType::F16 => &["f16", "float16"],
            DataType::Bf16 => &["bf16"],
            DataType::F32 => &["f32", "float32"],
            DataType::F64 => &["f64", "float64"],
            DataType::F8E4M3 => &["fp8_e4m3", "e4m3"],
            DataType::F8E5M2 => &["fp8_e5m2", "e5m2"],
        }
    }
}

fn names<T: Named>() -> Vec<PossibleValue> {
    T::all().iter().map(|v| PossibleValue::new(v.name()).aliases(v.aliases())).collect()
}

/// What clap has accepted, by name or alias.
fn find<T: Named>(text: &str) -> Result<T, String> {
    let is = |name: &str| name.eq_ignore_ascii_case(text);
    let mut all = T::all().into_iter();
    let found = all.find(|v| is(v.name()) || v.aliases().iter().any(|a| is(a)));
    found.ok_or_else(|| format!("unknown name {text}"))
}

/// Reads one name of the set.
pub(crate) fn one_of<T: Named>() -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names::<T>()).try_map(|text| find(&text))
}

/// Reads one name of the set, or `all`.
pub(crate) fn some_of<T: Named>() -> impl TypedValueParser<Value = Choice<T>> {
    let mut names = names::<T>();
    names.push(PossibleValue::new("all"));
    PossibleValuesParser::new(names).try_map(|text| match text.eq_ignore_ascii_case("all") {
        true => Ok(Choice(T::ALL.to_vec())),
        false => find(&text).map(|one| Choice(vec![one])),
    })
}

/// Reads `0` or `1`.
pub(crate) fn on_or_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["0", "1"]).map(|text| text == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_and_alias_is_found() {
        fn check<T: Named + PartialEq + fmt::Debug>() {
            for &value in T::ALL {
                for name in value.aliases().iter().chain([&value.name()]) {
                    assert_eq!(find::<T>(&name.to_uppercase()), Ok(value));
                }
            }
            assert!(find::<T>("nonsense").is_err());
        }
        check::<Collective>();
        check::<Operation>();
        check::<ReduceOp>();
        check::<ProtocolId>();
        check::<Algorithm>();
        check::<DataType>();
    }

    #[test]
    fn averages() {
        let times = [4.0, 1.0, 7.0];
        let all = [Average::Rank0, Average::Mean, Average::Min, Average::Max];
        assert_eq!(all.map(|a| a.of(&times)), [4.0, 4.0, 1.0, 7.0]);
    }
}
