//! How members and `whimbrel fleet` log in at the coordinator: each side proves that it knows the password,
//! and none says it.
//!
//! ```text
//! FLEET LOGIN user nonce   ▶   ◀ salt, iterations, nonce
//! FLEET PROVE proof        ▶   ◀ proof
//! ```
//!
//! Keys and proofs are those of SCRAM-SHA-256 (RFC 5802, RFC 7677). Only the words are packed in another way:
//! RESP carries bytes, so nothing has to be text. An attacker who listens can try passwords at leisure,
//! [`ITERATIONS`] rounds for each: a password should be long. An attacker between the two can pass everything
//! on: only TLS keeps that out.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac, pbkdf2};
use whimbrel_engine::endpoint::Endpoint;
use whimbrel_engine::error::{Error, ErrorKind, Result};
use whimbrel_engine::link::{Link, LinkOptions};
use whimbrel_wire::value::Value;

/// Rounds that are between a password and its keys.
pub const ITERATIONS: u32 = 15_000;

/// Rounds that a member takes part in: fewer make passwords easy to guess, more keep it busy.
const ITERATIONS_ALLOWED: std::ops::RangeInclusive<u32> = 4_096..=100_000;

/// Length of keys, proofs and nonces.
const KEY_BYTES: usize = digest::SHA256_OUTPUT_LEN;

/// Length of the salt.
const SALT_BYTES: usize = 16;

/// What is proved is said to be of this.
const PURPOSE: &[u8] = b"whimbrel fleet login 1";

type Key = [u8; KEY_BYTES];

/// Bytes that cannot be guessed.
///
/// # Errors
/// `Own` if the system has no randomness.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(_) => Err(Error::own("draw a random number", "the system gives none")),
    }
}

/// Compares without revealing by its duration where the difference is.
pub fn is_same(expected: &[u8], given: &[u8]) -> bool {
    expected.len() == given.len() && expected.iter().zip(given).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

fn sign(key: &[u8], message: &[u8]) -> Key {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    let mut signed = [0; KEY_BYTES];
    signed.copy_from_slice(tag.as_ref());
    signed
}

fn hash(bytes: &[u8]) -> Key {
    let mut hashed = [0; KEY_BYTES];
    hashed.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hashed
}

fn xor(a: &Key, b: &Key) -> Key {
    std::array::from_fn(|at| a[at] ^ b[at])
}

/// The keys that prove the client's and the server's identity.
fn keys(password: &[u8], salt: &[u8], iterations: NonZeroU32) -> (Key, Key) {
    let mut salted = [0; KEY_BYTES];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, password, &mut salted);
    (sign(&salted, b"Client Key"), sign(&salted, b"Server Key"))
}

/// All that both sides have said, each word with its length.
fn transcript(user: &[u8], nonce: &[u8], salt: &[u8], iterations: u32, server_nonce: &[u8]) -> Vec<u8> {
    let mut transcript = Vec::new();
    for word in [PURPOSE, user, nonce, salt, &iterations.to_le_bytes(), server_nonce] {
        transcript.extend_from_slice(&(word.len() as u64).to_le_bytes());
        transcript.extend_from_slice(word);
    }
    transcript
}

/// What a server has of its password, to see which clients know it.
pub struct Verifier {
    salt: [u8; SALT_BYTES],
    stored: Key,
    server: Key,
}

/// Its keys are as good as the password.
impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier")
    }
}

/// A login that has begun.
#[derive(Debug)]
pub struct Challenge {
    transcript: Vec<u8>,
    user: Bytes,
}

impl Verifier {
    /// For a password. Takes some milliseconds of a processor.
    ///
    /// # Errors
    /// As [`random`].
    pub fn new(password: &str) -> Result<Verifier> {
        let salt = random()?;
        let (client, server) = keys(password.as_bytes(), &salt, iterations(ITERATIONS));
        Ok(Verifier { salt, stored: hash(&client), server })
    }

    /// The reply to `FLEET LOGIN`, and what its proof has to be about; none if the nonce is none.
    ///
    /// # Errors
    /// As [`random`].
    pub fn challenge(&self, user: &Bytes, nonce: &[u8]) -> Result<Option<(Value, Challenge)>> {
        if nonce.len() != KEY_BYTES {
            return Ok(None);
        }
        let ours: Key = random()?;
        let transcript = transcript(user, nonce, &self.salt, ITERATIONS, &ours);
        let word = |bytes: &[u8]| Value::Bulk(Bytes::copy_from_slice(bytes));
        let reply = Value::Array(vec![word(&self.salt), Value::Int(ITERATIONS.into()), word(&ours)]);
        Ok(Some((reply, Challenge { transcript, user: user.clone() })))
    }

    /// The user and the reply to `FLEET PROVE`; none if the proof is none.
    pub fn verify(&self, challenge: Challenge, proof: &[u8]) -> Option<(Bytes, Value)> {
        let proof: &Key = proof.try_into().ok()?;
        let client = xor(proof, &sign(&self.stored, &challenge.transcript));
        let ours = sign(&self.server, &challenge.transcript);
        is_same(&self.stored, &hash(&client))
            .then(|| (challenge.user, Value::Bulk(Bytes::copy_from_slice(&ours))))
    }
}

fn iterations(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN)
}

/// Connects to a coordinator. If `coordinator` has a password, both sides have proved that they know it when
/// this returns.
///
/// # Errors
/// As [`Link::open`]; `Auth` if either side does not prove it.
pub async fn open(coordinator: &Arc<Endpoint>, options: LinkOptions) -> Result<Link> {
    let Some(password) = coordinator.password.clone() else {
        return Link::open(coordinator, &coordinator.address, options).await;
    };
    let mut link = Link::without_login(coordinator, &coordinator.address, options).await?;
    let fail = |what: &str, remedy: &str| {
        let (side, at) = (coordinator.side, coordinator.address.to_string());
        Err(Error::new(side, at, "log in", ErrorKind::Auth(what.to_owned())).with_remedy(remedy.to_owned()))
    };
    let user = coordinator.user.as_deref().unwrap_or("default").as_bytes();
    let nonce: Key = random()?;
    let reply = link.call(&[b"FLEET", b"LOGIN", user, &nonce]).await?;
    let Some((salt, rounds, ours)) = challenge_of(&reply) else {
        return Err(link.unexpected("FLEET LOGIN", &reply));
    };
    if !ITERATIONS_ALLOWED.contains(&rounds) {
        let what = format!("{rounds} rounds of hashing are not what a coordinator asks for");
        return fail(&what, "see that it is whimbrel serve of this version that listens there");
    }
    let (client, server) = keys(password.expose().as_bytes(), &salt, iterations(rounds));
    let transcript = transcript(user, &nonce, &salt, rounds, &ours);
    let proof = xor(&client, &sign(&hash(&client), &transcript));
    let reply = link.ask(&[b"FLEET", b"PROVE", &proof]).await?;
    if reply.as_error().is_some_and(|error| error.starts_with(b"WRONGPASS")) {
        return fail("the coordinator refused the credentials", "check the user and the password");
    }
    let reply = link.check(reply, b"FLEET PROVE")?;
    if reply.as_bytes().is_some_and(|proof| is_same(&sign(&server, &transcript), proof)) {
        return Ok(link);
    }
    fail(
        "it does not prove that it knows the password",
        "see that the coordinator of your fleet listens there, and nobody else",
    )
}

fn challenge_of(reply: &Value) -> Option<(Bytes, u32, Bytes)> {
    let Value::Array(words) = reply else { return None };
    let [salt, rounds, nonce] = words.as_slice() else { return None };
    let rounds = rounds.as_int().and_then(|rounds| u32::try_from(rounds).ok())?;
    let nonce = nonce.as_bytes().filter(|nonce| nonce.len() == KEY_BYTES)?;
    Some((salt.as_bytes()?.clone(), rounds, nonce.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
    }

    /// RFC 7677, section 3: user, pencil, 4096 rounds.
    #[test]
    fn keys_and_proofs_are_those_of_scram() {
        let transcript = "n=user,r=rOprNGfwEbeRWgbNEkqO,\
                    r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,\
                    c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let (client, server) = keys(b"pencil", &hex("5b6d99689d12358eeca04b141236fa81"), iterations(4_096));
        let proof = xor(&client, &sign(&hash(&client), transcript.as_bytes()));
        let expected = "747cdb65aa56224e2352137e52d7bdcad6a0f738df30782caa69a2cfb0277554";
        assert_eq!(proof, hex(expected).as_slice());
        let expected = "eabae24d1062db75a9451ff0b6ea7e98c8546549ff741e672d3251b2397de46e";
        assert_eq!(sign(&server, transcript.as_bytes()), hex(expected).as_slice());
    }

    #[test]
    fn only_who_knows_the_password_proves_it_and_only_once() {
        let verifier = Verifier::new("secret").expect("randomness");
        let (user, nonce) = (Bytes::from_static(b"default"), [7; KEY_BYTES]);
        let prove = |password: &[u8], reply: &Value| {
            let (salt, rounds, ours) = challenge_of(reply).expect("a challenge");
            let (client, server) = keys(password, &salt, iterations(rounds));
            let transcript = transcript(&user, &nonce, &salt, rounds, &ours);
            (xor(&client, &sign(&hash(&client), &transcript)), sign(&server, &transcript))
        };
        let begin = || verifier.challenge(&user, &nonce).expect("randomness").expect("a nonce");
        let (reply, challenge) = begin();
        let (proof, expected) = prove(b"secret", &reply);
        let (_, answer) = verifier.verify(challenge, &proof).expect("it is proved");
        assert_eq!(answer.as_bytes().map(|bytes| &bytes[..]), Some(&expected[..]));
        let (again, challenge) = begin();
        assert!(verifier.verify(challenge, &proof).is_none(), "said again, it is about an earlier question");
        let (_, challenge) = begin();
        assert!(verifier.verify(challenge, &prove(b"other", &again).0).is_none());
        assert!(verifier.challenge(&user, b"short").expect("randomness").is_none());
    }
}
