//! The outbox against a naive encoder, drained in every way that a socket may drain it.

use std::io::IoSlice;

use bytes::{Buf, Bytes};
use proptest::collection::vec;
use proptest::prelude::*;
use whimbrel_wire::encode::Outbox;
use whimbrel_wire::scan::{Progress, Scanner};
use whimbrel_wire::value::Value;

/// One argument, and the method that adds it.
#[derive(Debug, Clone)]
enum Arg {
    Copied(Vec<u8>),
    Spliced(Bytes),
    Int(i64),
}

impl Arg {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Arg::Copied(arg) => arg.clone(),
            Arg::Spliced(arg) => arg.to_vec(),
            Arg::Int(n) => n.to_string().into_bytes(),
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Command(Vec<Arg>),
    /// `Outbox::push`.
    Push(Vec<Vec<u8>>),
    /// Takes this [`share`] of what `chunk` shows.
    DrainChunk(u8),
    /// Asks for this many slices and takes this [`share`] of their bytes.
    DrainVectored(usize, u8),
    Clear,
}

/// Any short argument, or one of a length where its digits become more, or from which arguments are spliced.
fn arg_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(any::<u8>(), 0..20),
        1 => (prop::sample::select(vec![99_usize, 100, 8_191, 8_192, 8_193, 20_000]), any::<u8>())
            .prop_map(|(len, fill)| vec![fill; len]),
    ]
}

fn arg() -> impl Strategy<Value = Arg> {
    prop_oneof![
        arg_bytes().prop_map(Arg::Copied),
        arg_bytes().prop_map(|arg| Arg::Spliced(arg.into())),
        any::<i64>().prop_map(Arg::Int),
    ]
}

/// A share in 1/256, less one; often all, so that drains end where a part ends.
fn share() -> impl Strategy<Value = u8> {
    prop_oneof![Just(u8::MAX), any::<u8>()]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => vec(arg(), 0..6).prop_map(Step::Command),
        1 => vec(arg_bytes(), 0..4).prop_map(Step::Push),
        3 => share().prop_map(Step::DrainChunk),
        3 => (1..9_usize, share()).prop_map(|(slices, share)| Step::DrainVectored(slices, share)),
        1 => Just(Step::Clear),
    ]
}

fn naive_encoding(args: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn add_command(outbox: &mut Outbox, args: &[Arg]) {
    outbox.command(args.len());
    for arg in args {
        match arg {
            Arg::Copied(arg) => outbox.arg(arg),
            Arg::Spliced(arg) => outbox.arg_bytes(arg),
            Arg::Int(n) => outbox.arg_int(*n),
        }
    }
}

/// Up to `slices` slices of what waits.
fn slices_of(outbox: &Outbox, slices: usize) -> Vec<Vec<u8>> {
    let mut room = vec![IoSlice::new(b""); slices];
    let filled = outbox.chunks_vectored(&mut room);
    room[..filled].iter().map(|slice| slice.to_vec()).collect()
}

/// What `Buf` promises of an object with these bytes left.
fn check_contract(outbox: &Outbox, waiting: &[u8]) {
    assert_eq!(outbox.remaining(), waiting.len());
    assert_eq!(outbox.len(), waiting.len());
    assert_eq!(outbox.is_empty(), waiting.is_empty());
    assert_eq!(outbox.chunk().is_empty(), waiting.is_empty(), "a chunk is empty at the end only");
    assert!(waiting.starts_with(outbox.chunk()));
    assert_eq!(outbox.chunks_vectored(&mut []), 0);
    for slices in [1, 2, 3] {
        let shown = slices_of(outbox, slices);
        assert!(shown.iter().all(|slice| !slice.is_empty()));
        assert_eq!(shown.is_empty(), waiting.is_empty());
        assert!(waiting.starts_with(&shown.concat()));
        // Slots may be left empty only where everything is shown.
        assert!(shown.len() == slices || shown.concat() == waiting);
    }
}

proptest! {
    #[test]
    fn drained_bytes_are_the_naive_encoding(steps in vec(step(), 1..40)) {
        let mut outbox = Outbox::new();
        let mut waiting: Vec<u8> = Vec::new();
        for step in steps {
            match step {
                Step::Command(args) => {
                    add_command(&mut outbox, &args);
                    waiting.extend(naive_encoding(&args.iter().map(Arg::bytes).collect::<Vec<_>>()));
                }
                Step::Push(args) => {
                    outbox.push(&args.iter().map(Vec::as_slice).collect::<Vec<_>>());
                    waiting.extend(naive_encoding(&args));
                }
                Step::DrainChunk(share) => {
                    let taken = outbox.chunk().len() * (usize::from(share) + 1) / 256;
                    prop_assert_eq!(&outbox.chunk()[..taken], &waiting[..taken]);
                    outbox.advance(taken);
                    waiting.drain(..taken);
                }
                Step::DrainVectored(slices, share) => {
                    let shown = slices_of(&outbox, slices).concat();
                    let taken = shown.len() * (usize::from(share) + 1) / 256;
                    prop_assert_eq!(&shown[..], &waiting[..shown.len()]);
                    outbox.advance(taken);
                    waiting.drain(..taken);
                }
                Step::Clear => {
                    outbox.clear();
                    waiting.clear();
                }
            }
            check_contract(&outbox, &waiting);
        }
        let rest = outbox.copy_to_bytes(outbox.remaining());
        prop_assert_eq!(&rest[..], &waiting[..]);
        check_contract(&outbox, b"");
    }

    #[test]
    fn commands_come_back_as_arrays_of_strings(commands in vec(vec(arg(), 1..5), 1..8)) {
        let mut outbox = Outbox::new();
        for args in &commands {
            add_command(&mut outbox, args);
        }
        let mut stream = outbox.copy_to_bytes(outbox.remaining());
        let mut scanner = Scanner::default();
        for args in &commands {
            let Ok(Progress::Complete(len)) = scanner.scan(&stream) else { panic!("no frame") };
            let expected = args.iter().map(|arg| Value::Bulk(arg.bytes().into())).collect();
            prop_assert_eq!(Value::parse(&stream.split_to(len)), Ok(Value::Array(expected)));
        }
        prop_assert!(stream.is_empty());
    }
}

#[test]
fn a_long_argument_is_not_copied() {
    let long = Bytes::from(vec![7; 100_000]);
    let mut outbox = Outbox::new();
    outbox.command(2);
    outbox.arg(b"ECHO");
    outbox.arg_bytes(&long);
    let mut room = [IoSlice::new(b""); 4];
    assert_eq!(outbox.chunks_vectored(&mut room), 3);
    assert_eq!(room[1].as_ptr(), long.as_ptr());
}

#[test]
#[should_panic(expected = "past the end")]
fn advancing_past_the_end_is_refused() {
    let mut outbox = Outbox::new();
    outbox.push(&[b"PING"]);
    outbox.advance(outbox.len() + 1);
}
