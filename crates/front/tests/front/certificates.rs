//! Servers that take a certificate for a login: that of the front is not its clients'.

use whimbrel_engine::endpoint::{Endpoint, TlsOptions};
use whimbrel_engine::error::Side;
use whimbrel_lab::{CLIENT_NAME, Cluster, Engine, Server, Tls};

use crate::common::{Client, Served, alone};

const NOAUTH: &str = "-NOAUTH Authentication required.\r\n";

/// What the front is started with: a certificate, and neither a user nor a password.
fn by_certificate(url: &str, tls: &Tls) -> Endpoint {
    let mut endpoint = Endpoint::parse(Side::Source, url).expect("a valid address");
    (endpoint.user, endpoint.password) = (None, None);
    endpoint.tls = Some(TlsOptions {
        ca_file: Some(tls.ca()),
        cert_file: Some(tls.client_cert()),
        key_file: Some(tls.client_key()),
        ..TlsOptions::default()
    });
    endpoint
}

fn user() -> String {
    format!("user {CLIENT_NAME} on nopass ~* &* +@all")
}

/// A client that brings nothing is nobody, and one that logs in is who it says.
fn is_nobody(mut client: Client) {
    client.ask(&["ACL", "WHOAMI"], NOAUTH);
    client.ask(&["GET", "k"], NOAUTH);
    client.ask(&["AUTH", "secret"], "+OK\r\n");
    assert_eq!(client.asks(&["ACL", "WHOAMI"]), "default\r\n");
    client.ask(&["SET", "k", "v"], "+OK\r\n");
    assert_eq!(client.asks(&["GET", "k"]), "v\r\n");
}

#[test]
fn clients_do_not_get_the_identity_of_the_fronts_certificate() {
    let _alone = alone();
    for engine in [Engine::Valkey91, Engine::Redis86] {
        let tls = Tls::new().expect("certificates");
        let builder = Server::builder(engine).tls(&tls).arg("tls-auth-clients-user", "CN");
        let closed = builder.clone().user_acl(&user()).password("secret").start().expect("a server");
        let source = by_certificate(&closed.tls_url().expect("it has TLS"), &tls);
        for shared in [0, 1] {
            let served = Served::with(&source, 100, shared);
            is_nobody(served.client());
        }
        let open = builder.user_acl(&user()).start().expect("a server");
        let served = Served::at(&by_certificate(&open.tls_url().expect("it has TLS"), &tls), 100);
        assert_eq!(served.client().asks(&["ACL", "WHOAMI"]), "default\r\n");
    }
}

#[test]
fn nor_in_front_of_a_cluster() {
    let _alone = alone();
    let tls = Tls::new().expect("certificates");
    let cluster = Cluster::builder(Engine::Valkey91).tls(&tls).arg("tls-auth-clients-user", "CN");
    let cluster = cluster.password("secret").user_acl(&user()).start().expect("a cluster");
    let seed = &cluster.nodes()[0];
    let served = Served::at(&by_certificate(&seed.tls_url().expect("it has TLS"), &tls), 100);
    is_nobody(served.client());
}

#[test]
fn a_certificate_is_no_hindrance_where_it_is_no_login() {
    let _alone = alone();
    let tls = Tls::new().expect("certificates").requiring_client_cert();
    let source = Server::builder(Engine::Redis70).tls(&tls).start().expect("a server");
    let served = Served::at(&by_certificate(&source.tls_url().expect("it has TLS"), &tls), 100);
    served.client().ask(&["SET", "k", "v"], "+OK\r\n");
}
