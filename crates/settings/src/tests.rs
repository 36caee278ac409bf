//! Which source wins, and what is refused.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::error::Error;
use clap::{Args, CommandFactory, Parser, Subcommand};
use tempfile::NamedTempFile;

use crate::Surroundings;

#[derive(Debug, Parser)]
#[command(name = "whimbrel")]
struct Cli {
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    #[arg(long, global = true)]
    profile: Option<OsString>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Copy(CopyArgs),
    Verify(Reach),
    Fleet {
        #[command(subcommand)]
        what: Fleet,
    },
    Cutover {
        #[arg(long)]
        fence: String,
    },
}

#[derive(Debug, Subcommand)]
enum Fleet {
    Status {
        #[arg(long, required = true, value_delimiter = ',')]
        server: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct Reach {
    source: String,
    target: String,
    #[arg(long, default_value_t = 5)]
    connect_timeout: u64,
    #[arg(long, default_value_t = 30)]
    timeout: u64,
    #[arg(long, default_value_t = 60)]
    retry_for: u64,
}

#[derive(Debug, Args)]
struct CopyArgs {
    #[command(flatten)]
    reach: Reach,
    #[arg(long = "match")]
    matches: Vec<String>,
    #[arg(long, default_value_t = 64)]
    memory: u64,
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    lanes: u8,
    #[arg(long, default_value_t = 8)]
    shards: u8,
    #[arg(long, group = "existing")]
    replace: bool,
    #[arg(long, group = "existing")]
    skip: bool,
    #[arg(long)]
    verify: bool,
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    #[arg(long)]
    yes: bool,
}

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a file can be made");
    file.write_all(text.as_bytes()).expect("it can be written");
    file
}

fn parse(line: &[&str], file: Option<&NamedTempFile>, variables: &[(&str, &str)]) -> Result<Cli, Error> {
    let mut line: Vec<OsString> = ["whimbrel"].iter().chain(line).map(OsString::from).collect();
    if let Some(file) = file {
        line.extend(["--config".into(), file.path().into()]);
    }
    let variable = |name: &str| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
    };
    crate::parse(&Cli::command(), &line, Surroundings { variable: &variable, holds_secret: &|_| {} })
}

fn refused(line: &[&str], text: &str, variables: &[(&str, &str)]) -> String {
    let file = file(text);
    let error = parse(line, Some(&file), variables).expect_err("it is refused").to_string();
    error.replace(&file.path().display().to_string(), "FILE")
}

#[test]
fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
    let file = file("connect-timeout = 1\n[copy]\nmemory = \"17\"\nlanes = 2\nshards = 3\nverify = true\n");
    let variables = [("WHIMBREL_LANES", "5"), ("WHIMBREL_SHARDS", "6"), ("WHIMBREL_UNHEARD_OF", "7")];
    let cli = parse(&["copy", "a", "b", "--shards", "9"], Some(&file), &variables).expect("it is understood");
    let Command::Copy(args) = cli.command else { panic!("another command") };
    assert_eq!((args.memory, args.lanes, args.shards), (17, 5, 9));
    assert_eq!((args.reach.connect_timeout, args.reach.timeout), (1, 30));
    assert!(args.verify && !args.replace);
    // What is meant for another command is left alone.
    let cli = parse(&["verify", "a", "b"], Some(&file), &variables).expect("it is understood");
    let Command::Verify(args) = cli.command else { panic!("another command") };
    assert_eq!(args.connect_timeout, 1);
}

#[test]
fn a_profile_wins_over_the_rest_of_the_file_and_a_command_over_what_is_for_all() {
    let text = "timeout = 1\nretry-for = 1\n[copy]\ntimeout = 2\nretry-for = 2\n\
        [profile.night]\nretry-for = 3\n[profile.night.copy]\nskip = true\n";
    let times = |profile: &[&str], variables: &[(&str, &str)]| {
        let line: Vec<&str> = ["copy", "a", "b"].iter().chain(profile).copied().collect();
        let cli = parse(&line, Some(&file(text)), variables).expect("it is understood");
        let Command::Copy(args) = cli.command else { panic!("another command") };
        (args.reach.timeout, args.reach.retry_for, args.skip)
    };
    assert_eq!(times(&[], &[]), (2, 2, false));
    assert_eq!(times(&["--profile", "night"], &[]), (2, 3, true));
    assert_eq!(times(&[], &[("WHIMBREL_PROFILE", "night")]), (2, 3, true));
    let line = ["copy", "a", "b", "--profile", "day"];
    assert!(refused(&line, text, &[]).contains("FILE has no profile day\n       its profiles: night"));
}

#[test]
fn addresses_and_required_options_may_come_from_elsewhere() {
    let file = file(
        "[copy]\nsource = \"old:1\"\ntarget = \"new:2\"\nmatch = [\"a*\", \"b,c\"]\n\
        [fleet]\nserver = [\"x:1\", \"y:2\"]\n[cutover]\nfence = \"acl\"\n",
    );
    let sides = |line: &[&str], variables: &[(&str, &str)]| {
        let cli = parse(line, Some(&file), variables).expect("it is understood");
        let Command::Copy(args) = cli.command else { panic!("another command") };
        assert_eq!(args.matches, ["a*", "b,c"]);
        (args.reach.source, args.reach.target)
    };
    assert_eq!(sides(&["copy"], &[]), ("old:1".into(), "new:2".into()));
    assert_eq!(sides(&["copy", "other:3"], &[]), ("other:3".into(), "new:2".into()));
    assert_eq!(sides(&["copy"], &[("WHIMBREL_TARGET", "third:4")]), ("old:1".into(), "third:4".into()));
    let cli = parse(&["fleet", "status"], Some(&file), &[]).expect("it is understood");
    let Command::Fleet { what: Fleet::Status { server } } = cli.command else { panic!("another command") };
    assert_eq!(server, ["x:1", "y:2"]);
    let cli = parse(&["cutover"], Some(&file), &[]).expect("it is understood");
    let Command::Cutover { fence } = cli.command else { panic!("another command") };
    assert_eq!(fence, "acl");
}

#[test]
fn what_is_typed_puts_out_of_force_what_it_excludes() {
    let file = file("[copy]\nreplace = true\nyes = true\n");
    let how = |line: &[&str], variables: &[(&str, &str)]| {
        let cli = parse(line, Some(&file), variables).expect("it is understood");
        let Command::Copy(args) = cli.command else { panic!("another command") };
        (args.replace, args.skip, args.dry_run, args.yes)
    };
    assert_eq!(how(&["copy", "a", "b"], &[]), (true, false, false, true));
    assert_eq!(how(&["copy", "a", "b", "--skip"], &[]), (false, true, false, true));
    assert_eq!(how(&["copy", "a", "b", "--dry-run"], &[]), (true, false, true, false));
    assert_eq!(how(&["copy", "a", "b"], &[("WHIMBREL_REPLACE", "off")]), (false, false, false, true));
    // Two in one source exclude each other as two that are typed.
    let error = refused(&["copy", "a", "b"], "[copy]\nreplace = true\nskip = true\n", &[]);
    assert!(error.contains("cannot be used with"), "{error}");
    assert!(error.contains("comes from FILE:"), "{error}");
}

#[test]
fn a_mistake_is_named_with_its_line() {
    let copy = ["copy", "a", "b"];
    for (text, expected) in [
        (
            "\n\nretry-fro = \"1s\"\n",
            "FILE:3: no command has an option retry-fro\n       a similar option is retry-for",
        ),
        (
            "[copy]\nreplase = true\n",
            "FILE:2: copy has no option replase\n       a similar option is replace",
        ),
        ("[verify]\nreplace = true\n", "FILE:2: verify has no option replace"),
        ("[copi]\n", "FILE:1: there is no command copi\n       a similar heading is [copy]"),
        (
            "[fleet.stats]\n",
            "FILE:1: there is no command fleet stats\n       a similar heading is [fleet.status]",
        ),
        ("[profile.x.cpoy]\n", "FILE:1: there is no command cpoy"),
        ("[copy]\nreplace = \"yes\"\n", "FILE:2: replace is on or off\n       write true or false"),
        (
            "[copy]\nmemory = [1]\n",
            "FILE:2: memory has another kind of value\n       write a text or a number",
        ),
        ("[copy\n", "FILE:1: no TOML: "),
        ("profile = 1\n", "FILE:1: a profile is a table"),
        ("config = \"x\"\n", "FILE:1: no command has an option config"),
        ("[copy]\nlanes = 100\n", "--lanes comes from FILE:2"),
        // Also where it is not meant for this command.
        ("[fleet]\nsever = \"x\"\n", "FILE:2: fleet has no option sever\n       a similar option is server"),
    ] {
        let error = refused(&copy, text, &[]);
        assert!(error.contains(expected), "{text}\n{error}");
    }
    let error = parse(&copy, None, &[("WHIMBREL_REPLACE", "maybe")]).expect_err("it is refused");
    assert!(error.to_string().contains("WHIMBREL_REPLACE is neither on nor off"), "{error}");
    let error = parse(&copy, None, &[("WHIMBREL_LANES", "many")]).expect_err("it is refused");
    assert!(error.to_string().contains("--lanes comes from WHIMBREL_LANES"), "{error}");
    let error = parse(&copy, None, &[("WHIMBREL_CONFIG", "/nowhere/x.toml")]).expect_err("it is refused");
    assert!(error.to_string().contains("the configuration /nowhere/x.toml cannot be read"), "{error}");
}

#[test]
fn a_command_line_that_makes_no_sense_is_explained_as_without_a_file() {
    let file = file("[copy]\nreplace = true\n");
    for line in [
        &["copy", "a", "b", "--relpace"] as &[&str],
        &["cpoy"],
        &["copy", "--help"],
        &["copy", "a", "b", "c"],
    ] {
        let with = parse(line, Some(&file), &[]).expect_err("it is refused").to_string();
        let without = parse(line, None, &[]).expect_err("it is refused").to_string();
        assert_eq!(with, without);
    }
}
