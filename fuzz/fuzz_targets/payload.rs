//! DUMP payloads: any bytes are judged without a panic, and a new footer changes the footer only.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use whimbrel_wire::payload::{
    Dialect, Footer, Verdict, min_version_of, new_footer, parse, peek, rewrite_footer, verdict,
};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// A payload as it came, most likely damaged.
    serialized: &'a [u8],
    /// An object that gets a right footer here.
    object: &'a [u8],
    payload_version: u16,
    target_max_version: u16,
    from_valkey: bool,
    to_valkey: bool,
}

fn dialect(valkey: bool) -> Dialect {
    if valkey { Dialect::Valkey } else { Dialect::Redis }
}

fn check(serialized: &[u8], input: &Input) {
    let rewritten = rewrite_footer(serialized, input.target_max_version);
    let payload = match parse(serialized) {
        Ok(payload) => payload,
        Err(refused) => {
            assert_eq!(rewritten, Err(refused));
            return;
        }
    };
    assert_eq!(peek(serialized), Ok(payload));
    assert_eq!(serialized[0], payload.object_type);
    assert_eq!(payload.body.len() + 1 + Footer::LEN, serialized.len());

    let rewritten = rewritten.expect("it was parsed");
    let again = parse(&rewritten).expect("its footer is right");
    assert_eq!((again.object_type, again.body), (payload.object_type, payload.body));
    assert_eq!(again.rdb_version, input.target_max_version);
    let footer = new_footer(serialized, input.target_max_version).expect("it was parsed");
    assert!(rewritten.ends_with(&footer.to_bytes()));
    assert_eq!(footer, Footer::for_object(&serialized[..serialized.len() - Footer::LEN], footer.rdb_version));

    let (source, target) = (dialect(input.from_valkey), dialect(input.to_valkey));
    match verdict(payload.object_type, payload.rdb_version, source, target, input.target_max_version) {
        Verdict::AsIs => assert!(payload.rdb_version <= input.target_max_version),
        Verdict::RewriteFooter(version) => {
            assert_eq!(version, input.target_max_version);
            let known_since = min_version_of(payload.object_type, target).expect("the target knows the type");
            assert!(known_since <= version);
        }
        Verdict::TypedCopy => {}
    }
}

fuzz_target!(|input: Input| {
    check(input.serialized, &input);
    let footer = Footer::for_object(input.object, input.payload_version).to_bytes();
    let payload = [input.object, &footer].concat();
    assert_eq!(parse(&payload).is_ok(), !input.object.is_empty());
    check(&payload, &input);
});
