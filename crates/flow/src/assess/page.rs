//! An assessment as lines and tables, for whatever shows them.

use whimbrel_core::units::{format_bytes, format_count, format_count_of, format_duration_ms};
use whimbrel_engine::inventory::{CommandUse, Inventory, NodeFacts};
use whimbrel_engine::remedy::Remedy;

use super::conclusion::{Assessment, Verdict};
use super::estimate::{Estimates, Span};
use super::facts::Facts;
use super::findings::{Finding, Severity};
use super::sample::{LargeKey, TypeCount};
use super::ways::Way;
use crate::copy::DbPair;

/// How many commands are listed.
const COMMANDS: usize = 10;

/// All that is shown.
#[derive(Debug)]
pub struct Page {
    /// What it comes to.
    pub verdict: Verdict,
    /// What there is, and what it takes.
    pub lines: Vec<Line>,
    /// Tables.
    pub sections: Vec<Section>,
    /// How much each matters, what it is, what to do.
    pub findings: Vec<(Severity, String, Option<Remedy>)>,
}

/// A line with a label.
#[derive(Debug)]
pub struct Line {
    /// Its label.
    pub label: &'static str,
    /// What it says.
    pub text: String,
    /// What can be done to know more.
    pub remedy: Option<Remedy>,
}

fn line(label: &'static str, text: String) -> Line {
    Line { label, text, remedy: None }
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its head.
    pub name: &'static str,
    /// Whether it has numbers.
    pub is_number: bool,
    /// Columns with the highest rank are left out first if there is no room; those of rank 0 stay.
    pub rank: u8,
}

/// A column with text.
const fn column(name: &'static str, rank: u8) -> Column {
    Column { name, is_number: false, rank }
}

/// A column with numbers.
const fn number(name: &'static str, rank: u8) -> Column {
    Column { name, is_number: true, rank }
}

/// A table with a title.
#[derive(Debug)]
pub struct Section {
    /// What it is about.
    pub title: &'static str,
    /// Its columns.
    pub head: Vec<Column>,
    /// Which of them shrinks if there is little room.
    pub flexible: usize,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
}

impl Page {
    /// Of an assessment.
    pub fn of(assessment: &Assessment) -> Page {
        let facts = &assessment.facts;
        let sections = vec![
            servers(facts),
            databases(facts),
            types(facts),
            largest(facts),
            slots(facts),
            commands(facts),
            ways(facts),
        ];
        let finding = |finding: &Finding| {
            let (text, remedy) = finding.words();
            (finding.severity(), text, remedy)
        };
        Page {
            verdict: assessment.verdict,
            lines: lines(assessment),
            sections: sections.into_iter().filter(|section| !section.rows.is_empty()).collect(),
            findings: assessment.findings.iter().map(finding).collect(),
        }
    }
}

fn lines(assessment: &Assessment) -> Vec<Line> {
    let facts = &assessment.facts;
    let mut lines = vec![line("source", described(&facts.source))];
    if let Some(target) = &facts.target {
        lines.push(line("target", described(target)));
    }
    let sample = &facts.sample;
    let extent = if sample.complete { "all of them" } else { "a sample" };
    lines.push(line(
        "keys",
        format!(
            "{} looked at, {extent}, in {}; servers were busy with it for {} at most",
            format_count_of(sample.keys, "key"),
            format_duration_ms(sample.took_us / 1000),
            format_duration_ms(sample.busy_us.div_ceil(1000)),
        ),
    ));
    let rate = facts.rate;
    let writes = format_count(rate.writes_per_second.round() as u64);
    let bytes = format_bytes(rate.bytes_per_second as u64);
    lines.push(line("writes", format!("{writes} a second, {bytes} of replication")));
    lines.extend(estimates(&assessment.estimates, facts.target.is_some()));
    lines
}

fn estimates(estimates: &Estimates, has_target: bool) -> Vec<Line> {
    let span =
        |span: Span| format!("{} to {}", format_duration_ms(span.least_ms), format_duration_ms(span.most_ms));
    let measured = match has_target {
        true => "by reading a sample, and the way to the target",
        false => "by reading a sample",
    };
    let mut lines = Vec::new();
    if let Some(copy) = estimates.copy {
        let bytes = estimates.payload_bytes.map_or_else(String::new, |n| format!("{}, ", format_bytes(n)));
        lines.push(line("copy", format!("about {bytes}{} ({measured})", span(copy))));
    }
    if let Some(sync) = estimates.sync {
        lines.push(line("sync", format!("in step after about {}", span(sync))));
    }
    if let Some(pause) = estimates.pause {
        let pause = span(pause);
        let text = format!("writes pause for about {pause}");
        lines.push(Line { remedy: Some(Remedy::RehearseCutover), ..line("cutover", text) });
    }
    lines
}

fn described(deployment: &Inventory) -> String {
    let primaries = deployment.primaries().count() as u64;
    let replicas = match deployment.cluster {
        true => deployment.nodes.len() as u64 - primaries,
        false => deployment.primaries().map(|node| node.replicas).sum(),
    };
    let kind = match deployment.cluster {
        true => format!("cluster of {primaries} primaries"),
        false => "standalone".to_owned(),
    };
    let bytes = deployment.primaries().map(|node| node.dataset_bytes).sum();
    format!(
        "{}: {}, {kind}, {}, {}, {}",
        deployment.address,
        deployment.version,
        format_count_of(replicas, "replica"),
        format_count_of(deployment.keys(), "key"),
        format_bytes(bytes),
    )
}

fn servers(facts: &Facts) -> Section {
    let row = |side: &str, node: &NodeFacts| {
        let role = if node.primary { "primary" } else { "replica" };
        let memory = match node.maxmemory_bytes {
            Some(max) => format!("{} of {}", format_bytes(node.used_memory_bytes), format_bytes(max)),
            None => format_bytes(node.used_memory_bytes),
        };
        let cells = match &node.silent {
            Some(_) => ["no answer", "", "", "", "", "", ""].map(str::to_owned),
            None => [
                node.version.clone(),
                format_count(node.keys),
                memory,
                node.maxmemory_policy.clone(),
                format_count(node.ops_per_second),
                format_count(node.clients),
                node.backlog_bytes.map_or_else(String::new, format_bytes),
            ],
        };
        [vec![side.to_owned(), node.address.clone(), role.to_owned()], cells.to_vec()].concat()
    };
    let source = facts.source.nodes.iter().map(|node| row("source", node));
    let target = facts.target.iter().flat_map(|target| &target.nodes).map(|node| row("target", node));
    Section {
        title: "Servers",
        head: vec![
            column("SIDE", 0),
            column("ADDRESS", 0),
            column("ROLE", 2),
            column("VERSION", 1),
            number("KEYS", 1),
            number("MEMORY", 3),
            column("POLICY", 6),
            number("OPS/S", 4),
            number("CLIENTS", 5),
            number("BACKLOG", 7),
        ],
        flexible: 1,
        rows: source.chain(target).collect(),
    }
}

fn databases(facts: &Facts) -> Section {
    let row = |pair: &DbPair| {
        let of = |inventory: &Inventory, db| inventory.databases.get(&db).copied().unwrap_or_default();
        let source = of(&facts.source, pair.source);
        let target = facts.target.as_ref().map(|target| format_count(of(target, pair.target).keys));
        vec![
            pair.source.to_string(),
            format_count(source.keys),
            format_count(source.expires),
            pair.target.to_string(),
            target.unwrap_or_default(),
        ]
    };
    Section {
        title: "Databases",
        head: vec![
            number("DB", 0),
            number("KEYS", 0),
            number("EXPIRING", 1),
            number("TO DB", 2),
            number("KEYS THERE", 3),
        ],
        flexible: 0,
        rows: facts.dbs.iter().map(row).collect(),
    }
}

fn types(facts: &Facts) -> Section {
    let row = |(name, of): (&String, &TypeCount)| {
        let share = (of.keys * 100).checked_div(facts.sample.keys).unwrap_or(0);
        let each = of.bytes.checked_div(of.keys).unwrap_or(0);
        vec![
            name.clone(),
            format_count(of.keys),
            format!("{share} %"),
            format_bytes(of.bytes),
            format_bytes(each),
        ]
    };
    Section {
        title: "Types in the sample",
        head: vec![
            column("TYPE", 0),
            number("KEYS", 0),
            number("SHARE", 1),
            number("BYTES", 2),
            number("EACH", 3),
        ],
        flexible: 0,
        rows: facts.sample.types.iter().map(row).collect(),
    }
}

fn largest(facts: &Facts) -> Section {
    let row = |key: &LargeKey| {
        let slot = key.slot.to_string();
        vec![key.key.clone(), key.type_name.clone(), format_bytes(key.bytes), key.db.to_string(), slot]
    };
    Section {
        title: "Largest keys of the sample",
        head: vec![
            column("KEY", 0),
            column("TYPE", 1),
            number("BYTES", 0),
            number("DB", 2),
            number("SLOT", 3),
        ],
        flexible: 0,
        rows: facts.sample.largest.iter().map(row).collect(),
    }
}

fn slots(facts: &Facts) -> Section {
    // If owners count for themselves, that is better than a sample.
    let counted = facts.source.slots.iter().take(COMMANDS).map(|slot| {
        let cpu = slot.cpu_us.map_or_else(String::new, |us| format_duration_ms(us / 1000));
        vec![slot.slot.to_string(), format_count(slot.keys), String::new(), cpu]
    });
    let sampled = facts.sample.slots.iter().map(|slot| {
        vec![slot.slot.to_string(), format_count(slot.keys), format_bytes(slot.bytes), String::new()]
    });
    let is_cluster = facts.source.cluster || facts.target.as_ref().is_some_and(|target| target.cluster);
    let is_counted = !facts.source.slots.is_empty();
    Section {
        title: if is_counted { "Slots with most work" } else { "Fullest slots of the sample" },
        head: vec![number("SLOT", 0), number("KEYS", 0), number("BYTES", 1), number("CPU TIME", 1)],
        flexible: 0,
        rows: match (is_cluster, is_counted) {
            (false, _) => Vec::new(),
            (true, true) => counted.collect(),
            (true, false) => sampled.collect(),
        },
    }
}

fn commands(facts: &Facts) -> Section {
    let mut used: Vec<_> = facts.source.used.iter().filter(|(_, used)| used.calls > 0).collect();
    used.sort_by_key(|(_, used)| std::cmp::Reverse(used.micros));
    let row = |(name, used): &(&String, &CommandUse)| {
        let lacking = facts.lacking.as_ref().is_some_and(|lacking| lacking.contains(name));
        let there = if lacking { "lacking" } else { "" };
        vec![
            (*name).clone(),
            format_count(used.calls),
            format_duration_ms(used.micros / 1000),
            there.to_owned(),
        ]
    };
    Section {
        title: "Commands that took most time",
        head: vec![column("COMMAND", 0), number("CALLS", 0), number("TIME", 1), column("ON THE TARGET", 2)],
        flexible: 0,
        rows: used.iter().take(COMMANDS).map(row).collect(),
    }
}

fn ways(facts: &Facts) -> Section {
    let row = |way: &Way| {
        let (name, needs) = way.kind.words();
        let answer = if way.is_open() { "yes" } else { "no" };
        vec![name.to_owned(), answer.to_owned(), way.problem.clone().unwrap_or_else(|| needs.to_owned())]
    };
    Section {
        title: "Ways to migrate",
        head: vec![column("WAY", 0), column("POSSIBLE", 0), column("NEEDS, OR WHY NOT", 1)],
        flexible: 2,
        rows: facts.ways.iter().map(row).collect(),
    }
}
