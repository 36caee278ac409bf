//! `whimbrel fleet`: asks the coordinator of a fleet, and watches until what was asked for is done.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio_util::sync::CancellationToken;
use whimbrel_control::fleet::FleetStatus;
use whimbrel_control::fleet::client::{CoordinatorClient, Goal};
use whimbrel_core::units::{format_count, format_count_of};
use whimbrel_engine::error::{Error, Result, Side};

use crate::exit::Exit;
use crate::settings::args::{Asked, FleetArgs, FleetCommand};
use crate::ui::confirm::confirm;
use crate::ui::errors;
use whimbrel_terminal::question::Question;
use whimbrel_terminal::screen::Screen;
use whimbrel_watch::fleet::page;

/// How often the coordinator is asked how it stands.
const POLL: Duration = Duration::from_millis(200);

/// How often it is printed how many partitions are left.
const PRINT_EVERY: Duration = Duration::from_secs(1);

/// `whimbrel fleet`.
pub async fn run(args: &FleetArgs, stop: CancellationToken) -> Exit {
    crate::signals::note_read_only();
    match try_run(args, &stop).await {
        Ok(exit) => exit,
        Err(e) => {
            let exit = Exit::of(&e, false);
            show_error(&e, args.command.at().json, exit);
            exit
        }
    }
}

/// Prints an error of the coordinator, which is no side of a transfer.
pub fn show_error(error: &Error, as_json: bool, exit: Exit) {
    if error.side == Side::Own {
        return errors::show_error(error, as_json, exit);
    }
    crate::ui::errors::show_error_of("coordinator", error, str::to_owned, as_json, exit);
}

async fn try_run(args: &FleetArgs, stop: &CancellationToken) -> Result<Exit> {
    let at = args.command.at();
    let mut coordinator = CoordinatorClient::new(at.endpoints()?);
    let status = coordinator.first_status().await?;
    let (words, goal, order) = match &args.command {
        FleetCommand::Status(_) => return Ok(show(&status, at.json)),
        FleetCommand::Join { which, weight, order, .. } => {
            let words = match (&which.member, &which.backend) {
                (Some(member), _) => {
                    let number = status.find(member)?.member.to_string();
                    let weight = weight.map(|weight| weight.to_string());
                    ["JOIN".to_owned(), number].into_iter().chain(weight).collect()
                }
                (None, backend) => place(&status, backend.as_deref(), weight.unwrap_or(1))?,
            };
            (words, Goal::Settled, order)
        }
        FleetCommand::Leave { member, order, .. } => {
            let number = status.find(member)?.member;
            (vec!["LEAVE".to_owned(), number.to_string()], Goal::Gone(number), order)
        }
        FleetCommand::Dead { member, order, .. } => {
            let number = status.find(member)?.member;
            (vec!["DEAD".to_owned(), number.to_string()], Goal::Gone(number), order)
        }
        FleetCommand::Drain { which, order, .. } => match (&which.member, &which.backend) {
            (Some(member), _) => {
                let number = status.find(member)?.member;
                (vec!["DRAIN".to_owned(), number.to_string()], Goal::Empty(number), order)
            }
            (None, backend) => {
                let name = backend.clone().unwrap_or_default();
                (place(&status, backend.as_deref(), 0)?, Goal::Bare(name), order)
            }
        },
        FleetCommand::Rebalance(order) => (vec!["REBALANCE".to_owned()], Goal::Settled, order),
    };
    if let Some((asked, question)) = question(&args.command, &status, &goal) {
        if asked.dry_run {
            coordinator.order(&[vec!["REHEARSE".to_owned()], words].concat()).await?;
            let plan = question.text.trim_end_matches('?');
            let words = format!("plan     {plan}\ndry run: nothing was changed");
            print_status(at.json, "dry-run", &words, &status);
            return Ok(Exit::Success);
        }
        let decision = confirm(&question, asked.ask.yes, false, at.json, stop).await?;
        if let Some(exit) = decision.end(Exit::Success) {
            return Ok(exit);
        }
    }
    coordinator.order(&words).await?;
    if order.no_wait {
        print_status(at.json, "asked", "the coordinator has written it down and goes on by itself", &status);
        return Ok(Exit::Success);
    }
    watch(&mut coordinator, &goal, at.json, stop).await
}

/// What is asked before everything is given away.
fn question(command: &FleetCommand, status: &FleetStatus, goal: &Goal) -> Option<(Asked, Question)> {
    let (asked, and_leave) = match command {
        FleetCommand::Leave { asked, .. } => (*asked, " and leave the fleet"),
        FleetCommand::Drain { asked, .. } | FleetCommand::Dead { asked, .. } => (*asked, ""),
        _ => return None,
    };
    let of_fleet = format!("of a fleet of {}", format_count_of(status.members.len() as u64, "member"));
    let what = match goal {
        Goal::Bare(backend) => format!("backend {backend} {of_fleet} give all its data"),
        Goal::Gone(number) | Goal::Empty(number) => {
            let name = status.member(*number).map_or("", |member| &member.name);
            format!("member {number} ({name}) {of_fleet} give all its partitions")
        }
        Goal::Settled => return None,
    };
    let left = format_count(goal.left(status));
    if let FleetCommand::Dead { .. } = command
        && let Goal::Gone(number) = goal
    {
        let named = status.member(*number).map(|member| member.name.clone());
        let name = named.filter(|name| !name.is_empty()).unwrap_or_else(|| number.to_string());
        let text = format!(
            "Give the {left} partitions of member {number} ({name}) {of_fleet} to others at once? Its \
             process has to be gone: if it runs, two members serve the same slots until its lease ends."
        );
        return Some((asked, Question::typed(text, name)));
    }
    let text = format!("Have {what} ({left}) to others{and_leave}?");
    Some((asked, Question::new(text)))
}

async fn watch(
    coordinator: &mut CoordinatorClient,
    goal: &Goal,
    as_json: bool,
    stop: &CancellationToken,
) -> Result<Exit> {
    let mut printed: Option<((u64, String), Instant)> = None;
    loop {
        let Some(status) = stop.run_until_cancelled(coordinator.status_patiently()).await else {
            return Ok(stopped(as_json));
        };
        let status = status?;
        let left = goal.left(&status);
        if goal.is_reached(&status) {
            let members = status.members.len();
            let words = format!(
                "done     {members} members have {} partitions",
                format_count(status.partitions.into())
            );
            print_status(as_json, "done", &words, &status);
            return Ok(Exit::Success);
        }
        let trouble = status.members.iter().map(|member| &member.trouble).find(|why| !why.is_empty());
        let now = (left, trouble.cloned().unwrap_or_default());
        if printed.as_ref().is_none_or(|(before, at)| *before != now && at.elapsed() >= PRINT_EVERY) {
            let mut words = match left {
                0 => "waiting  until all know where everything is".to_owned(),
                left => format!("moving   {} partitions left", format_count(left)),
            };
            if !now.1.is_empty() {
                words.push_str(&format!("; moves fail: {}", now.1));
            }
            print_status(as_json, "progress", &words, &status);
            printed = Some((now, Instant::now()));
        }
        if stop.run_until_cancelled(tokio::time::sleep(POLL)).await.is_none() {
            return Ok(stopped(as_json));
        }
    }
}

fn stopped(as_json: bool) -> Exit {
    if as_json {
        out!("{}", json!({"event": "stopped"}));
    } else {
        eprintln!("stopped  watching; the coordinator goes on: see whimbrel fleet status");
    }
    Exit::Stopped
}

fn print_status(as_json: bool, event: &str, words: &str, status: &FleetStatus) {
    if as_json {
        out!(
            "{}",
            json!({"event": event, "moving": status.moving, "remaining": status.remaining, "fleet": status})
        );
    } else {
        out!("{words}");
    }
}

/// What gives a backend its part.
fn place(status: &FleetStatus, name: Option<&str>, weight: u32) -> Result<Vec<String>> {
    let name = name.unwrap_or_default();
    status.check_backend(name)?;
    Ok(vec!["PLACE".to_owned(), name.to_owned(), weight.to_string()])
}

fn show(status: &FleetStatus, as_json: bool) -> Exit {
    let has_problem = status.unowned > 0 || status.members.iter().any(|member| !member.connected);
    let exit = if has_problem { Exit::Problem } else { Exit::Success };
    if as_json {
        out!(
            "{}",
            json!({"event": "fleet", "settled": status.is_settled(), "fleet": status, "exit": exit as u8})
        );
    } else {
        page(status, Screen::of_stdout()).lines().for_each(|line| out!("{line}"));
    }
    exit
}
