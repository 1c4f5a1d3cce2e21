//! TLS to Redis: built once from the configuration's PEM, used for every connection.
use crate::domain::config::Tls;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// Without `store.tls` the system's certificate authorities are believed.
pub fn client_config(tls: Option<&Tls>) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("store.tls: {error}"))?;
    let verify = tls.is_none_or(|tls| tls.verify);
    let builder = if verify {
        builder.with_root_certificates(roots(tls.and_then(|tls| tls.ca.as_deref()))?)
    } else {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Unverified(provider)))
    };
    let own = tls.and_then(|tls| Some((tls.cert.as_deref()?, tls.key.as_ref()?)));
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates(cert, "store.tls.cert_file")?;
            let key = PrivateKeyDer::from_pem_slice(key.0.as_bytes())
                .map_err(|error| format!("store.tls.key_file: no private key in PEM ({error})"))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| {
                format!("store.tls: key_file does not belong to cert_file ({error})")
            })?
        }
    };
    Ok(Arc::new(config))
}

fn certificates(pem: &[u8], field: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("{field}: not PEM ({error})"))?;
    if found.is_empty() {
        Err(format!("{field}: no certificate in it"))
    } else {
        Ok(found)
    }
}

fn roots(ca: Option<&[u8]>) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    match ca {
        Some(pem) => {
            for certificate in certificates(pem, "store.tls.ca_file")? {
                store
                    .add(certificate)
                    .map_err(|error| format!("store.tls.ca_file: {error}"))?;
            }
        }
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err("store.tls: the system has no CA certificates; install \
                            ca-certificates, or name a file in store.tls.ca_file"
                    .to_owned());
            }
        }
    }
    Ok(store)
}

/// For `verify = false`: encrypted, but to anybody.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
