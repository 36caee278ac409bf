//! Certificates for servers and clients.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;

use crate::error::LabError;

/// The name in the client's certificate: servers can take it for that of a user.
pub const CLIENT_NAME: &str = "whimbrel-lab-client";

/// A certificate authority, a server certificate for `127.0.0.1` and `localhost`, and a client certificate,
/// in PEM files that vanish with the last clone.
#[derive(Debug, Clone)]
pub struct Tls {
    dir: Arc<TempDir>,
    client_cert_required: bool,
}

impl Tls {
    /// Makes new certificates. A client may come without a certificate; if it shows one, it has to be valid.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn new() -> Result<Self, LabError> {
        let dir = tempfile::Builder::new()
            .prefix("whimbrel-lab-tls-")
            .tempdir()
            .map_err(|source| LabError::io("create a folder for certificates", source))?;

        let mut ca = named("whimbrel lab authority", Vec::new())?;
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_key = KeyPair::generate()?;
        write(&dir.path().join("ca.crt"), &ca.self_signed(&ca_key)?.pem())?;
        let issuer = Issuer::new(ca, ca_key);

        let server = named("whimbrel lab server", vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        // A server is also the client of other servers: of its primary, and of every node of its cluster.
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        issue(dir.path(), "server", server, &both, &issuer)?;
        let client = named(CLIENT_NAME, Vec::new())?;
        issue(dir.path(), "client", client, &[ExtendedKeyUsagePurpose::ClientAuth], &issuer)?;
        Ok(Self { dir: Arc::new(dir), client_cert_required: false })
    }

    /// The same certificates, for servers that turn clients without a certificate away.
    #[must_use]
    pub fn requiring_client_cert(&self) -> Self {
        Self { dir: Arc::clone(&self.dir), client_cert_required: true }
    }

    /// Whether servers turn clients without a certificate away.
    pub fn is_client_cert_required(&self) -> bool {
        self.client_cert_required
    }

    /// The authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    /// The server's certificate.
    pub fn server_cert(&self) -> PathBuf {
        self.dir.path().join("server.crt")
    }

    /// The server's private key.
    pub fn server_key(&self) -> PathBuf {
        self.dir.path().join("server.key")
    }

    /// A client's certificate.
    pub fn client_cert(&self) -> PathBuf {
        self.dir.path().join("client.crt")
    }

    /// The client's private key.
    pub fn client_key(&self) -> PathBuf {
        self.dir.path().join("client.key")
    }
}

fn named(common_name: &str, alternative_names: Vec<String>) -> Result<CertificateParams, LabError> {
    let mut params = CertificateParams::new(alternative_names)?;
    params.distinguished_name.push(DnType::CommonName, common_name);
    Ok(params)
}

fn issue(
    dir: &Path,
    stem: &str,
    mut params: CertificateParams,
    usages: &[ExtendedKeyUsagePurpose],
    issuer: &Issuer<'_, KeyPair>,
) -> Result<(), LabError> {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages.to_vec();
    let key = KeyPair::generate()?;
    write(&dir.join(stem).with_extension("crt"), &params.signed_by(&key, issuer)?.pem())?;
    write(&dir.join(stem).with_extension("key"), &key.serialize_pem())
}

/// Writes a file that only this user may read.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), LabError> {
    let mut options = fs::OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
        .map_err(|source| LabError::io(format!("write {}", path.display()), source))
}
