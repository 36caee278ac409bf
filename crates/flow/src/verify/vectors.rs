//! Comparing vector sets.
//!
//! Two vector sets that hold the same need not serialise to the same bytes: links between vectors are chosen
//! at random. So elements are compared, by name, stored vector and attributes. Servers have no iteration over
//! them that could be cut in chunks; of a large vector set a random part is compared.

use bytes::Bytes;
use whimbrel_wire::value::Value;

use super::case::{Case, Fault, Verdict, number, sound, strings};
use super::pair::{Pair, element_text, lengths_text};
use super::peer::{Peer, Request};
use super::report::DifferenceKind;
use super::stream::{mixed, weight};

/// As `TYPE` says it.
pub(super) const VECTOR_SET: &str = "vectorset";

/// Elements asked for at most, and elements compared in one round trip.
const ELEMENTS_MAX: u64 = 4_096;
const LOOKUP_MAX: usize = 128;

impl Pair {
    /// A vector set. If only a part was compared, the verdict is `Opaque`.
    pub(super) async fn vector_set(&mut self, case: &mut Case) -> Result<(), Fault> {
        for (command, of) in [("VDIM", "dimensions"), ("VCARD", "elements")] {
            let (source, target) = self.both_once(Request::on(command, &case.key)).await?;
            let source = number(&self.source, command, source)?;
            let target = number(&self.target, command, target)?;
            case.saw_digests(source, target);
            if source != target {
                case.find(DifferenceKind::Length, lengths_text(of, source, target));
                return Ok(());
            }
            if command == "VCARD" {
                self.vectors(case, source).await?;
            }
        }
        Ok(())
    }

    async fn vectors(&mut self, case: &mut Case, count: u64) -> Result<(), Fault> {
        let command = "VRANDMEMBER";
        let reply = self.source.one(Request::on(command, &case.key).int(count.min(ELEMENTS_MAX))).await?;
        let mut names = strings(&self.source, command, reply)?;
        names.sort_unstable();
        names.dedup();
        let whole = names.len() as u64 == count;
        let mut differing = Vec::new();
        for part in names.chunks(LOOKUP_MAX) {
            let requests: Vec<Request> = part
                .iter()
                .flat_map(|name| {
                    let vector = Request::on("VEMB", &case.key).arg(name.clone()).arg("RAW");
                    [vector, Request::on("VGETATTR", &case.key).arg(name.clone())]
                })
                .collect();
            let (source, target) = self.both(&requests).await?;
            let elements = source.chunks_exact(2).zip(target.chunks_exact(2));
            for (name, (ours, theirs)) in part.iter().zip(elements) {
                case.bytes += name.len() as u64 + ours.iter().map(weight).sum::<u64>();
                self.compare_vector(case, name, ours, theirs, &mut differing)?;
            }
        }
        if !whole && case.findings.is_empty() && differing.is_empty() {
            case.verdict = Verdict::Opaque;
        }
        if let Some((name, kind, how)) = differing.first() {
            case.find(*kind, element_text("element", name, how, differing.len() as u64 - 1));
        }
        Ok(())
    }

    fn compare_vector(
        &self,
        case: &mut Case,
        name: &Bytes,
        ours: &[Value],
        theirs: &[Value],
        differing: &mut Vec<(Bytes, DifferenceKind, &'static str)>,
    ) -> Result<(), Fault> {
        let checked = |peer: &Peer, replies: &[Value]| {
            sound(peer, "VEMB", replies[0].clone())?;
            sound(peer, "VGETATTR", replies[1].clone()).map(|_| ())
        };
        checked(&self.source, ours)?;
        checked(&self.target, theirs)?;
        if ours[0].is_null() {
            return Err(Fault::Shifted);
        }
        if ours != theirs {
            let digest = |replies: &[Value]| replies.iter().fold(0, mixed);
            case.saw_digests(digest(ours), digest(theirs));
            differing.push(match (theirs[0].is_null(), ours[0] == theirs[0]) {
                (true, _) => (name.clone(), DifferenceKind::Element, "is on the source only"),
                (false, false) => (name.clone(), DifferenceKind::Value, "has another vector"),
                (false, true) => (name.clone(), DifferenceKind::Value, "has other attributes"),
            });
        }
        Ok(())
    }
}
