//! Special registers.
//!
//! Source: PTX ISA 9.0, chapter 10.

/// One that the emulator knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    /// `%tid`, by dimension.
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    /// `%smid`: each block has its own multiprocessor.
    SmId,
    NSmId,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    Clock,
    ClockHi,
    Clock64,
    GlobalTimer,
    GlobalTimerLo,
    GlobalTimerHi,
    DynamicSharedBytes,
    TotalSharedBytes,
}

impl Special {
    /// By its name, the percent sign included.
    pub(crate) fn from_name(name: &str) -> Option<Special> {
        let dimension = |rest: &str| match rest {
            "x" => Some(0),
            "y" => Some(1),
            "z" => Some(2),
            _ => None,
        };
        if let Some((register, rest)) = name.split_once('.') {
            let dimension = dimension(rest)?;
            return match register {
                "%tid" => Some(Special::Tid(dimension)),
                "%ntid" => Some(Special::Ntid(dimension)),
                "%ctaid" => Some(Special::Ctaid(dimension)),
                "%nctaid" => Some(Special::Nctaid(dimension)),
                _ => None,
            };
        }
        Some(match name {
            "%laneid" => Special::LaneId,
            "%warpid" => Special::WarpId,
            "%nwarpid" => Special::NWarpId,
            "%smid" => Special::SmId,
            "%nsmid" => Special::NSmId,
            "%gridid" => Special::GridId,
            "%lanemask_eq" => Special::LaneMaskEq,
            "%lanemask_le" => Special::LaneMaskLe,
            "%lanemask_lt" => Special::LaneMaskLt,
            "%lanemask_ge" => Special::LaneMaskGe,
            "%lanemask_gt" => Special::LaneMaskGt,
            "%clock" => Special::Clock,
            "%clock_hi" => Special::ClockHi,
            "%clock64" => Special::Clock64,
            "%globaltimer" => Special::GlobalTimer,
            "%globaltimer_lo" => Special::GlobalTimerLo,
            "%globaltimer_hi" => Special::GlobalTimerHi,
            "%dynamic_smem_size" => Special::DynamicSharedBytes,
            "%total_smem_size" => Special::TotalSharedBytes,
            _ => return None,
        })
    }
}
