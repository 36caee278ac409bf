//! The servers' own tables show where keys are.

use std::sync::Arc;

use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::Side;
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_front::command::keys::{CommandTable, Keys};
use whimbrel_lab::{Engine, Server};
use whimbrel_wire::value::Value;

use crate::common::alone;

whimbrel_lab::for_each_engine! {
    async on every:
        keys_are_where_the_server_finds_them
}

/// Commands with keys, each in a form that all servers take.
const WITH_KEYS: &str = "GET a|SET a v EX 10|MGET a b c|MSET a 1 b 2|DEL a b c|EXISTS a b|RENAME a b|COPY a \
    b|LPUSH a x y\
    |LMOVE a b LEFT RIGHT|BLPOP a b 0|BRPOPLPUSH a b 0|SINTERSTORE d a b|SDIFF a b|ZADD z 1 m|BITOP AND d a \
    b|PFMERGE d a b\
    |GETEX a PERSIST|OBJECT ENCODING a|MEMORY USAGE a|XGROUP CREATE x g 0|XINFO STREAM x|XADD x * f v|XACK x \
    g 1-1|XRANGE x - +\
    |HSET h f v|TOUCH a b|UNLINK a b|WATCH a b|DUMP a|LCS a b|SMOVE a b m|GEOSEARCHSTORE d s FROMMEMBER m \
    BYRADIUS 1 m|SUBSTR a 0 1\
    |ZRANGESTORE d s 0 -1|PFCOUNT a b|MSETNX a 1 b 2|GETSET a v";

/// Commands whose words decide.
const ASKED: &str = "ZUNIONSTORE d 2 a b|ZINTER 2 a b|LMPOP 2 a b LEFT|SINTERCARD 2 a b|XREAD COUNT 1 \
    STREAMS x y 0 0\
    |XREADGROUP GROUP g c STREAMS x >|EVAL script 1 a|ZMPOP 1 z MIN|BLMPOP 0 1 l LEFT|MIGRATE host 1 a 0 1\
    |GEORADIUS s 1 1 1 m STORE d";

/// Commands that may use other keys than their words.
const UNKNOWN: &str = "SORT a BY w_*|SORT_RO a GET p_*";

/// Commands without keys.
const WITHOUT: &str = "PING|SELECT 0|PUBLISH c m|SPUBLISH c m|CLIENT ID|CONFIG GET x|DBSIZE|SCAN 0|KEYS \
    *|FLUSHALL|MULTI|EXEC|SCRIPT EXISTS x\
    |FUNCTION LIST|OBJECT HELP|GET|GET a b|XGROUP HELP|SUBSCRIBE c";

async fn open(server: &Server) -> Link {
    let endpoint = Arc::new(Endpoint::parse(Side::Source, &server.url()).expect("a valid address"));
    let address = endpoint.address.clone();
    Link::open(&endpoint, &address, LinkOptions::default()).await.expect("a connection")
}

fn words(line: &str) -> Vec<&[u8]> {
    line.split(' ').map(str::as_bytes).collect()
}

async fn keys_are_where_the_server_finds_them(engine: Engine) {
    let _alone = alone();
    let server = Server::builder(engine).start().expect("a server");
    let mut link = open(&server).await;
    let table = CommandTable::ask(&mut link).await.expect("a table");
    let keys = |line: &str| {
        let words = words(line);
        let facts = table.facts(&words).unwrap_or_else(|| panic!("{engine:?} knows no {line}"));
        facts.keys(words.len())
    };
    for line in WITH_KEYS.split('|') {
        let words = words(line);
        let asked = [vec![&b"COMMAND"[..], b"GETKEYS"], words.clone()].concat();
        let reply = link.call(&asked).await.expect("keys");
        let expected: Vec<&[u8]> = reply
            .as_items()
            .expect("a list")
            .iter()
            .filter_map(Value::as_bytes)
            .map(|key| &key[..])
            .collect();
        let Keys::At(found) = keys(line) else { panic!("{engine:?}, {line}: {:?}", keys(line)) };
        let found: Vec<&[u8]> = found.iter().map(|at| words[*at]).collect();
        assert_eq!(found, expected, "{engine:?}, {line}");
    }
    for (lines, expected) in [(ASKED, Keys::Asked), (UNKNOWN, Keys::Unknown), (WITHOUT, Keys::None)] {
        for line in lines.split('|') {
            assert_eq!(keys(line), expected, "{engine:?}, {line}");
        }
    }
    let facts = |line: &str| table.facts(&words(line)).cloned().expect("it is known");
    assert!(facts("get a").readonly && !facts("get a").blocking && !facts("SET a v").readonly);
    assert!(facts("BLPOP a 0").blocking && facts("XREAD STREAMS x 0").blocking);
    assert!(!facts("PFCOUNT a").readonly && facts("XRANGE x - +").readonly);
    assert!(facts("Xgroup Create x g 0").keys(5) == Keys::At(vec![2]));
    assert!(table.facts(&words("NOSUCH a")).is_none() && table.facts(&[]).is_none());
    assert!(table.facts(&words("XGROUP NOSUCH a")).is_none());
}
