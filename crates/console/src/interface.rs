//! The interface over HTTP, and the document that describes it (OpenAPI 3.1).

use serde_json::{Map, Value, json};

use crate::tokens::Role;

/// One thing that can be asked.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// Where, below `/api/v1`.
    pub path: &'static str,
    /// The role that it needs; `None` where no token is needed.
    pub needs: Option<Role>,
    /// What it is, in a line.
    pub summary: &'static str,
    /// The fields of its body, each with its JSON schema, and whether it has to be there.
    pub fields: &'static [Field],
}

/// A field of a body.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    name: &'static str,
    schema: &'static str,
    required: bool,
}

const fn must(name: &'static str, schema: &'static str) -> Field {
    Field { name, schema, required: true }
}

const fn may(name: &'static str, schema: &'static str) -> Field {
    Field { name, schema, required: false }
}

const TEXT: &str = r#"{"type": "string"}"#;
const FLAG: &str = r#"{"type": "boolean"}"#;
const COUNT: &str = r#"{"type": "integer", "minimum": 1, "maximum": 9007199254740991}"#;
const BOUND: &str = r#"{"type": ["integer", "null"], "minimum": 0, "maximum": 9007199254740991}"#;
const MAYBE_TEXT: &str = r#"{"type": ["string", "null"]}"#;

const fn get(path: &'static str, needs: Option<Role>, summary: &'static str) -> Operation {
    Operation { method: "GET", path, needs, summary, fields: &[] }
}

const fn post(path: &'static str, needs: Role, summary: &'static str, fields: &'static [Field]) -> Operation {
    Operation { method: "POST", path, needs: Some(needs), summary, fields }
}

const LOOK: Option<Role> = Some(Role::Look);
const ADMINISTER: Option<Role> = Some(Role::Administer);

/// All of it.
pub const OPERATIONS: &[Operation] = &[
    get("/openapi.json", None, "This document"),
    get("/me", LOOK, "Whose token this is, and what this console has"),
    get("/stream", LOOK, "How everything stands, and each second what has changed: server-sent events"),
    get("/jobs", LOOK, "All jobs"),
    get("/jobs/{name}", LOOK, "A job, its events, and its report once it has ended"),
    get("/cluster", LOOK, "The cluster: shards, sizes, load, and what is wrong with it"),
    get("/cluster/repair", LOOK, "What a repair would do; nothing is changed"),
    get("/fleet", LOOK, "The fleet: members, leases, partitions"),
    post("/jobs/{name}/pause", Role::Operate, "Move no more keys for now", &[]),
    post("/jobs/{name}/resume", Role::Operate, "Move keys again", &[]),
    post(
        "/jobs/{name}/set",
        Role::Operate,
        "Move keys faster or slower; what is absent stays, null is no bound",
        &[may("rate_keys", BOUND), may("rate_bytes", BOUND), may("max_latency_ms", BOUND)],
    ),
    post(
        "/jobs/{name}/cancel",
        Role::Operate,
        "End a job, and undo what can be undone; confirm is its name",
        &[must("confirm", TEXT)],
    ),
    post(
        "/plans",
        Role::Operate,
        "Plan moves of slots; nothing is changed",
        &[
            must("kind", r#"{"enum": ["rebalance", "drain", "reshard"]}"#),
            may("by", r#"{"enum": ["slots", "keys", "bytes", "ops"]}"#),
            may("use_empty", FLAG),
            may("threshold", r#"{"type": "number", "minimum": 0, "maximum": 100}"#),
            may("node", TEXT),
            may("slots", TEXT),
            may("to", TEXT),
        ],
    ),
    post(
        "/plans/{id}/approve",
        Role::Operate,
        "Carry a plan out as it was shown; confirm is the cluster's address",
        &[must("confirm", TEXT)],
    ),
    post(
        "/plans/{id}/cancel",
        Role::Operate,
        "End all jobs of a plan that have not ended; confirm is the cluster's address. Where jobs are named \
            and others of the plan have not ended, nothing is cancelled",
        &[must("confirm", TEXT), may("jobs", r#"{"type": ["array", "null"], "items": {"type": "string"}}"#)],
    ),
    post(
        "/jobs/{name}/cutover",
        Role::Administer,
        "Have the target of a sync take over, or find out whether it could; confirm is the job's name",
        &[
            may("confirm", MAYBE_TEXT),
            may("dry_run", FLAG),
            may("fence", r#"{"enum": ["none", "pause", "acl", "readonly-replica", "external", "front"]}"#),
            may("max_pause_ms", r#"{"type": "integer", "minimum": 1, "maximum": 60000}"#),
            may("compare", r#"{"enum": ["none", "counts", "sample", "full"]}"#),
            may("reverse", FLAG),
            may("back", FLAG),
            may("fence_for_ms", COUNT),
            may("quiet_for_ms", COUNT),
            may("wait_for_quiet_ms", COUNT),
        ],
    ),
    post(
        "/jobs",
        Role::Administer,
        "Begin a copy, a sync or a verification; confirm is the target's address where it writes",
        &[
            must("kind", r#"{"enum": ["sync", "verify", "copy"]}"#),
            must("source", TEXT),
            must("target", TEXT),
            may("source_password", MAYBE_TEXT),
            may("target_password", MAYBE_TEXT),
            may("confirm", MAYBE_TEXT),
            may("mirror", FLAG),
            may("replace", FLAG),
            may("resume", FLAG),
            may("rate_keys", BOUND),
            may("match", r#"{"type": "array", "items": {"type": "string"}}"#),
        ],
    ),
    post(
        "/assessments",
        Role::Administer,
        "Look at a source, and at a target where there is one; nothing is changed",
        &[
            must("source", TEXT),
            may("target", MAYBE_TEXT),
            may("source_password", MAYBE_TEXT),
            may("target_password", MAYBE_TEXT),
        ],
    ),
    get("/assessments/{id}", ADMINISTER, "How an assessment stands"),
    get("/audit", ADMINISTER, "Who has ordered what, with the result: the newest first"),
];

/// The document.
pub fn document() -> Value {
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let path = paths.entry(format!("/api/v1{}", operation.path)).or_insert_with(|| json!({}));
        path[operation.method.to_lowercase()] = describe(operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Whimbrel's console",
            "version": "1",
            "description": "Jobs, clusters and fleets, as the page in the browser sees them. x-role is the \
                least role that may ask: look, operate or administer.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Failure": {
                "type": "object",
                "required": ["error", "remedy"],
                "properties": {"error": {"type": "string"}, "remedy": {"type": ["string", "null"]}},
            }},
        },
    })
}

fn describe(operation: &Operation) -> Value {
    let failure = |what: &str| {
        let schema = json!({"$ref": "#/components/schemas/Failure"});
        json!({"description": what, "content": {"application/json": {"schema": schema}}})
    };
    let kind = if operation.path == "/stream" { "text/event-stream" } else { "application/json" };
    let mut responses = json!({
        "200": {"description": "What was asked for", "content": {kind: {"schema": {}}}},
        "400": failure("The request makes no sense"),
        "408": failure("The request has not arrived in time"),
        "413": failure("The request is too long"),
        "415": failure("The request is no JSON"),
        "421": failure("The host is none of this console's names"),
    });
    let mut described = json!({"summary": operation.summary});
    if let Some(role) = operation.needs {
        described["security"] = json!([{"token": []}]);
        described["x-role"] = json!(role);
        for (status, what) in [
            ("401", "There is no token, or it does not hold"),
            ("403", "The role does not permit it, or a page from elsewhere asks"),
            ("404", "There is nothing of this name, or this console has none of it"),
            ("409", "Not as things stand now"),
            ("422", "A server or the job refuses"),
            ("503", "A server does not answer"),
            ("507", "The audit log cannot be written, so nothing was done"),
        ] {
            responses[status] = failure(what);
        }
    }
    described["responses"] = responses;
    let named = operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let named: Vec<Value> = named
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect();
    if !named.is_empty() {
        described["parameters"] = json!(named);
    }
    if operation.method == "POST" {
        let mut properties = Map::new();
        for field in operation.fields {
            // They are constants: a test reads them all.
            properties
                .insert(field.name.to_owned(), serde_json::from_str(field.schema).unwrap_or(Value::Null));
        }
        let required: Vec<&str> =
            operation.fields.iter().filter(|field| field.required).map(|field| field.name).collect();
        let schema = json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false,
        });
        described["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    described
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_a_schema_and_every_operation_a_role() {
        for operation in OPERATIONS {
            for field in operation.fields {
                let schema: Value = serde_json::from_str(field.schema).expect(field.name);
                assert!(schema.is_object(), "{}", field.name);
            }
            assert!(operation.needs.is_some() || operation.path == "/openapi.json");
            assert!(operation.method == "GET" || operation.needs >= Some(Role::Operate));
        }
        let document = document();
        assert_eq!(document["paths"].as_object().expect("paths").len(), OPERATIONS.len() - 1);
        assert_eq!(document["paths"]["/api/v1/audit"]["get"]["x-role"], "administer");
    }
}
