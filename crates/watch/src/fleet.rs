//! The page of a fleet.

use whimbrel_control::fleet::FleetStatus;
use whimbrel_core::units::format_count;
use whimbrel_terminal::screen::Screen;
use whimbrel_terminal::table::{Table, number, text};

/// How a fleet stands, for people.
pub fn page(status: &FleetStatus, screen: Screen) -> String {
    let state = match (status.unowned, status.remaining, status.is_settled()) {
        (0, 0, true) => "settled".to_owned(),
        (0, 0, false) => "nothing left to move; some members do not know it yet".to_owned(),
        (0, left, _) => {
            format!("{} partitions left to move, {} moving now", format_count(left), status.moving)
        }
        (unowned, ..) => format!("{} partitions have no owner", format_count(unowned)),
    };
    let mut page = format!(
        "fleet    {} partitions, {} members, term {}: {state}\nmoves    {} made, {} given up since the \
            start\n",
        format_count(status.partitions.into()),
        status.members.len(),
        status.term,
        format_count(status.moved),
        format_count(status.failed),
    );
    for backend in &status.backends {
        let has = format_count(backend.partitions);
        let part = match status.backends.len() {
            1 => String::new(),
            _ => format!(", data of {has} partitions, weight {}", backend.weight),
        };
        page.push_str(&format!("backend  {} {}{part}\n", backend.name, backend.url));
    }
    let mut rows = Table::new(
        &[
            number("MEMBER", 0),
            text("NAME", 1),
            text("ADDRESS", 2),
            number("PARTITIONS", 1),
            number("STANDBY", 7),
            number("WEIGHT", 4),
            number("LAG", 3),
            number("REQUESTS", 5),
            text("TABLE", 3),
            text("VERSION", 6),
            text("STATE", 0),
        ],
        2,
    );
    let mut troubles = String::new();
    for member in &status.members {
        let table = match member.equal {
            Some(true) => "equal",
            Some(false) => "differs",
            None => "unknown",
        };
        let state = match (member.connected, member.leaving, member.weight) {
            (false, ..) => match member.silent_ms {
                Some(ms) => format!("not connected, silent for {} s", ms / 1_000),
                None => "not heard from since the coordinator started".to_owned(),
            },
            (_, true, _) => "leaves".to_owned(),
            (_, _, 0) => "drained".to_owned(),
            _ => "serves".to_owned(),
        };
        rows.row(vec![
            member.member.to_string(),
            member.name.clone(),
            member.address.clone(),
            format_count(member.owned),
            format_count(member.stands_by),
            member.weight.to_string(),
            format_count(member.lag),
            format_count(member.held),
            table.to_owned(),
            member.version.clone(),
            state,
        ]);
        if !member.trouble.is_empty() {
            troubles.push_str(&format!("member {}: moves fail there: {}\n", member.member, member.trouble));
        }
    }
    page.push('\n');
    rows.lines(screen).iter().for_each(|line| page.push_str(&format!("{line}\n")));
    page + &troubles
}

#[cfg(test)]
mod tests {
    use whimbrel_control::fleet::MemberStatus;

    use super::*;

    fn status() -> FleetStatus {
        let member = |number, name: &str, owned| MemberStatus {
            member: number,
            name: name.to_owned(),
            address: format!("{name}:1"),
            weight: 1,
            connected: true,
            owned,
            equal: Some(true),
            ..MemberStatus::default()
        };
        let members = vec![member(1, "a", 3), member(2, "b", 0), member(30, "b", 5)];
        FleetStatus { members, partitions: 8, ..FleetStatus::default() }
    }

    #[test]
    fn the_page_shows_which_member_has_a_problem() {
        let mut status = status();
        let screen = |width| Screen { width, colour: false };
        let settled = page(&status, screen(200));
        assert!(settled.contains("settled") && !settled.contains("nobody"), "{settled}");
        (status.members[0].connected, status.members[0].silent_ms) = (false, Some(2_500));
        (status.unowned, status.members[1].equal) = (4, Some(false));
        let page = |width| page(&status, screen(width));
        for expected in ["4 partitions have no owner", "silent for 2 s", "differs"] {
            assert!(page(200).contains(expected), "{expected} is not in {}", page(200));
        }
        for width in [80, 120] {
            let table = page(width);
            assert!(table.lines().all(|line| line.chars().count() <= width), "{table}");
            assert!(table.contains("silent for 2 s"), "{table}");
        }
    }
}
