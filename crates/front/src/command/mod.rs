//! What is done with which command.
//!
//! One [table](table) feeds the sessions, the connections to clusters, the errors that clients see, and the
//! documentation: [`documentation`]
//! writes `docs/front-commands.md`, and a test compares the two.
//!
//! - [`documentation`]: the page about all of this;
//! - [`plan`]: what is done with a command while keys move, by the table and by the keys that the servers'
//!   own tables list;
//! - [`table`]: the table; [`rule`]: what may stand in it;
//! - [`keys`]: where the keys of a command are, as servers report; [`by_name`]: what is looked up by name.

pub(crate) mod by_name;
pub mod documentation;
pub mod keys;
pub mod plan;
pub mod rule;
pub mod table;
