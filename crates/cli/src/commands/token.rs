//! `whimbrel token`: who may use the console.

use whimbrel_console::tokens::Tokens;
use whimbrel_control::private::state_dir;
use whimbrel_core::units::format_time;
use whimbrel_engine::error::Result;

use crate::exit::Exit;
use crate::settings::args::{TokenArgs, TokenCommand};
use crate::ui::errors;

/// Runs the command.
pub fn run(args: &TokenArgs) -> Exit {
    try_run(args).map_or_else(|e| errors::end_of(&e, false), |()| Exit::Success)
}

fn try_run(args: &TokenArgs) -> Result<()> {
    let tokens = Tokens::of(&state_dir(args.state_dir.as_deref())?);
    match &args.command {
        TokenCommand::Add { name, role } => {
            let token = tokens.add(name, *role)?;
            eprintln!("token of {name}, who may {role}. It is not shown again:");
            out!("{token}");
        }
        TokenCommand::List => {
            for token in tokens.list()? {
                out!("{}  {}  made {}", token.name, token.role, format_time(token.created_s));
            }
        }
        TokenCommand::Remove { name } => {
            tokens.remove(name)?;
            out!("the token of {name} is refused from now on");
        }
    }
    Ok(())
}
