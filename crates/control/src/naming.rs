//! What jobs between two deployments are called: by what makes two of them the same one.

use whimbrel_engine::endpoint::Address;
use xxhash_rust::xxh3::xxh3_64;

/// The short name of the job that is described so.
pub fn job_of(description: &str) -> String {
    format!("{:016x}", xxh3_64(description.as_bytes()))
}

/// An address in the spelling that stands for all: a journal is found again by `localhost` that was begun by
/// `127.0.0.1`.
pub fn one_spelling(address: &Address) -> String {
    let Address::Tcp(host, port) = address else { return address.to_string() };
    let host = match host.trim_end_matches('.').to_ascii_lowercase() {
        name if name == "localhost" => "127.0.0.1".to_owned(),
        name => name.parse().map_or(name, |ip: std::net::IpAddr| ip.to_string()),
    };
    Address::Tcp(host, *port).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_spelling() {
        let spelt = |host: &str| one_spelling(&Address::Tcp(host.to_owned(), 7000));
        assert_eq!([spelt("localhost"), spelt("LOCALHOST."), spelt("127.0.0.1")], ["127.0.0.1:7000"; 3]);
        assert_eq!(
            (spelt("Db.Example"), spelt("0:0::1")),
            ("db.example:7000".to_owned(), "[::1]:7000".to_owned())
        );
    }
}
