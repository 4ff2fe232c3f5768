//! The simulator from outside: against formulas where nothing is contended for, and by properties that hold for every cluster.

mod alpha_beta;
mod coarse;
mod failure;
mod faults;
mod late;
mod properties;
mod support;
mod tuner;
