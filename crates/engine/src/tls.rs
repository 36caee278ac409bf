//! TLS: configurations of clients, and how a listener of ours meets its clients.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::endpoint::TlsOptions;
use crate::error::{Error, Result as EngineResult};

/// Builds the client configuration that `options` describe.
///
/// # Errors
/// A sentence that names the file and what is wrong with it.
pub(crate) fn client_config(options: &TlsOptions) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let builder = if options.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAny { provider }))
    } else {
        builder.with_root_certificates(roots(options.ca_file.as_deref())?)
    };
    let config = match (&options.cert_file, &options.key_file) {
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(|e| pair_fails(cert, key, &e))?,
        (None, None) => builder.with_no_client_auth(),
        _ => return Err("a client certificate and its key are needed together".to_owned()),
    };
    Ok(Arc::new(config))
}

/// How a listener of ours meets its clients with TLS.
#[derive(Clone)]
pub struct Acceptor(TlsAcceptor);

impl Acceptor {
    /// Shows the certificate of these PEM files. With `client_ca`, clients have to show one of that
    /// authority.
    ///
    /// # Errors
    /// `Own` with the name of the file and what is wrong with it.
    pub fn new(cert: &Path, key: &Path, client_ca: Option<&Path>) -> EngineResult<Acceptor> {
        let config = server_config(cert, key, client_ca).map_err(|e| Error::own("listen with TLS", e))?;
        Ok(Acceptor(Arc::new(config).into()))
    }

    /// Agrees with a client that has connected. The caller limits the time.
    ///
    /// # Errors
    /// If they do not agree, or the client leaves.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.0.accept(stream).await
    }
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acceptor")
    }
}

fn server_config(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<ServerConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let verifier = match client_ca {
        Some(path) => WebPkiClientVerifier::builder_with_provider(Arc::new(roots(Some(path))?), provider)
            .build()
            .map_err(|e| format!("cannot use {} as an authority: {e}", path.display()))?,
        None => Arc::new(NoClientAuth),
    };
    builder
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(cert)?, private_key(key)?)
        .map_err(|e| pair_fails(cert, key, &e))
}

fn private_key(key: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(key).map_err(|e| format!("cannot use the key {}: {e}", key.display()))
}

/// Why a handshake failed, without the names that the library has for what it does not put into words.
pub(crate) fn handshake_failure(error: &io::Error) -> String {
    let text = error.to_string();
    let Some(rustls::Error::InvalidCertificate(CertificateError::Other(_))) =
        error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>())
    else {
        return text;
    };
    if text.contains("CaUsedAsEndEntity") {
        return "the server shows the certificate of an authority as its own".to_owned();
    }
    "the server's certificate is not one that can be accepted".to_owned()
}

fn pair_fails(cert: &Path, key: &Path, error: &rustls::Error) -> String {
    format!("certificate {} and key {} do not work: {error}", cert.display(), key.display())
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            for cert in certificates(path)? {
                roots.add(cert).map_err(|e| format!("cannot use {} as an authority: {e}", path.display()))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err(
                    "this system has no certificate authorities; name one with the CA option".to_owned()
                );
            }
        }
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certs: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(|e| format!("cannot read {}: {e}", path.display()))?
        .collect::<Result<_, _>>()
        .map_err(|e| format!("{} is not a PEM file: {e}", path.display()))?;
    if certs.is_empty() {
        return Err(format!("{} holds no certificate", path.display()));
    }
    Ok(certs)
}

/// Accepts any certificate, because the user said `--insecure`. Signatures are still checked, so the peer at
/// least holds the key of the certificate it shows.
#[derive(Debug)]
struct AcceptAny {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_names_of_the_library_are_shown() {
        #[derive(Debug)]
        struct CaUsedAsEndEntity;
        impl std::fmt::Display for CaUsedAsEndEntity {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{self:?}")
            }
        }
        impl std::error::Error for CaUsedAsEndEntity {}
        let other = CertificateError::Other(rustls::OtherError(Arc::new(CaUsedAsEndEntity)));
        let error = io::Error::other(rustls::Error::InvalidCertificate(other));
        assert!(error.to_string().contains("OtherError"), "{error}");
        assert_eq!(handshake_failure(&error), "the server shows the certificate of an authority as its own");
    }
}
