//! The real binary against real servers, one module for each command or concern.

mod asking;
mod cluster_view;
mod cutover;
mod daemon;
mod errors;
mod faults;
mod front;
mod front_backends;
mod front_fleet;
mod front_flush;
mod front_large;
mod front_moving;
mod known_losses;
mod older;
mod options;
mod pairs;
mod private;
mod reshard;
mod reshard_faults;
mod reshard_large;
mod reshard_selfcheck;
mod review;
mod selfcheck;
mod soak;
mod sync;
mod watching;
