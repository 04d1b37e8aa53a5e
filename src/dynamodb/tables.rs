//! Operations on tables: create, describe, change, list, delete.
//!
//! A table exists at once, and is deleted at once. Its items are removed afterwards, by the node that deletes it or, after a crash, by any
//! node (`Database::sweep`): a record of the removal stays until they are. The endpoint removes them as itself, so no client needs a right
//! for it.
//!
//! **No table has the name of another whose items remain.** Items that are locks claim names that the new table's items would claim too.
//! They would queue behind locks that nobody can release, and an operator would take back the wrong one. So the entry of a deleted table
//! stays, and reads as missing, until its items are removed. A `CreateTable` of its name removes them itself, as far as its time allows.
//!
//! **The use of a table** ([`TableUse`]) is part of its entry, so all nodes agree on it. An operator sets it by the tag [`USE_TAG`].
//! Otherwise the first item that is written decides. If a known lock client wrote it, items of the table may be locks (see `recipes`). In
//! every other table no item is a lock, whatever it looks like.
//!
//! Some settings are accepted and have no effect: throughput, billing mode, table class, encryption, other tags, and the time to live of
//! items, which clients read back. Others are refused: secondary indexes, streams, replicas and resource policies. A table without these
//! would not do what its owner relies on.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::time::Instant;

use crate::{
    DynamoCaller, DynamoEntry, DynamoLease, DynamoStore, DynamoTxn, DynamoWrite,
    database::{CachedTable, Database, TRIES},
    error::{Error, ErrorType, Result},
    item::ItemRecord,
    key, recipes,
    request::{read, required, table_name},
    schema::{Attribute, FORMAT, TableProperties, TableUse, USE_TAG},
};
use lockkeeper_planted::Planted;

/// Number of items that are removed at a time, after their table was deleted.
const SWEEP_ITEMS: usize = 64;
const LIST_MAX: usize = 100;
/// Maximum number of attributes that a request defines, and of tags that it gives.
const DEFINITIONS_MAX: usize = 255;
const TAGS_MAX: usize = 50;
/// Time that a `CreateTable` keeps for its answer when it removes the items of a deleted table.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// The limits of tags, which are DynamoDB's.
const TAG_KEY_CHARS_MAX: usize = 128;
const TAG_VALUE_CHARS_MAX: usize = 256;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct TableRequest {
    table_name: Option<String>,
    attribute_definitions: Option<Vec<Definition>>,
    key_schema: Option<Vec<KeyElement>>,
    billing_mode: Option<String>,
    provisioned_throughput: Option<Throughput>,
    local_secondary_indexes: Option<Vec<Json>>,
    global_secondary_indexes: Option<Vec<Json>>,
    global_secondary_index_updates: Option<Vec<Json>>,
    stream_specification: Option<StreamSpecification>,
    resource_policy: Option<String>,
    replica_updates: Option<Vec<Json>>,
    deletion_protection_enabled: Option<bool>,
    tags: Option<Vec<Tag>>,
    time_to_live_specification: Option<TimeToLive>,
    exclusive_start_table_name: Option<String>,
    limit: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Definition {
    attribute_name: String,
    attribute_type: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct KeyElement {
    attribute_name: String,
    key_type: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Throughput {
    read_capacity_units: Option<u64>,
    write_capacity_units: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct StreamSpecification {
    stream_enabled: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Tag {
    key: String,
    value: String,
}

/// The requests `TagResource`, `UntagResource` and `ListTagsOfResource`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct TagsRequest {
    resource_arn: Option<String>,
    tags: Option<Vec<Tag>>,
    tag_keys: Option<Vec<String>>,
}

impl TagsRequest {
    /// Returns the table that the ARN names. Its region and account are ignored, because there is one cluster.
    fn table(&self) -> Result<&str> {
        let arn = required(self.resource_arn.as_ref(), "ResourceArn")?;
        let name = arn.strip_prefix("arn:").and_then(|rest| rest.split_once(":table/")).map(|(_, name)| name);
        let name = name.filter(|name| !name.contains('/'));
        name.ok_or_else(|| Error::validation(format!("Invalid TableArn: Invalid ResourceArn provided as input {arn}")))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct TimeToLive {
    attribute_name: Option<String>,
    enabled: Option<bool>,
}

impl TableProperties {
    /// Makes a table from a request, whose parts must agree.
    fn requested(name: &str, request: &TableRequest, created_ms: u64) -> Result<Self> {
        let definitions = required(request.attribute_definitions.as_ref(), "AttributeDefinitions")?;
        let schema = required(request.key_schema.as_ref(), "KeySchema")?;

        if request.local_secondary_indexes.is_some() || request.global_secondary_indexes.is_some() {
            return Err(Error::parameters(
                "secondary indexes are not supported here: create the table without LocalSecondaryIndexes and \
                 GlobalSecondaryIndexes",
            ));
        }
        request.check_what_is_not_there()?;

        // The order of the checks is DynamoDB's: a request with two mistakes gets the same message from both.
        check_count(schema.len(), 2, "keySchema")?;
        check_count(definitions.len(), DEFINITIONS_MAX, "attributeDefinitions")?;
        check_count(request.tags.as_ref().map_or(0, Vec::len), TAGS_MAX, "tags")?;

        check_key_types(schema)?;

        let names: Vec<_> = schema.iter().map(|element| &*element.attribute_name).collect();
        let defined: Vec<_> = definitions.iter().map(|definition| &*definition.attribute_name).collect();
        if names.len() > defined.len() {
            return Err(Error::validation("Invalid KeySchema: Some index key attribute have no definition"));
        } else if names.iter().any(|name| !defined.contains(name)) {
            return Err(Error::parameters(format!(
                "Some index key attributes are not defined in AttributeDefinitions. Keys: [{}], AttributeDefinitions: \
                 [{}]",
                names.join(", "),
                defined.join(", ")
            )));
        }

        let (first, second) = partition_and_sort(schema)?;
        if names.len() != defined.len() {
            return Err(Error::parameters(
                "Number of attributes in KeySchema does not exactly match number of attributes defined in \
                 AttributeDefinitions",
            ));
        }

        let mut table = Self {
            format: FORMAT,
            name: name.to_owned(),
            partition: attribute(definitions, first)?,
            sort: second.map(|second| attribute(definitions, second)).transpose()?,
            created_ms,
            throughput: throughput(request)?,
            time_to_live: None,
            protected: request.deletion_protection_enabled.unwrap_or(false),
            tags: BTreeMap::new(),
            used_for: None,
            is_dropped: false,
        };

        table.add_tags(request.tags.as_deref().unwrap_or_default())?;
        Ok(table)
    }

    /// Returns the name of the attribute by which items have a time to live.
    pub(crate) fn time_to_live(&self) -> Option<&str> {
        self.time_to_live.as_deref()
    }

    fn add_tags(&mut self, tags: &[Tag]) -> Result<()> {
        for Tag { key, value } in tags {
            if key.is_empty() || key.chars().count() > TAG_KEY_CHARS_MAX {
                let constraint = format!("Member must have length between 1 and {TAG_KEY_CHARS_MAX}");
                return Err(Error::constraint(key, "tags.member.key", &constraint));
            } else if value.chars().count() > TAG_VALUE_CHARS_MAX {
                let constraint = format!("Member must have length less than or equal to {TAG_VALUE_CHARS_MAX}");
                return Err(Error::constraint(value, "tags.member.value", &constraint));
            }

            // The tag says what the table is used for, so it is stored apart from the other tags: it counts for no limit.
            if key == USE_TAG {
                self.used_for = Some(TableUse::from_tag(value)?);
            } else {
                self.tags.insert(key.clone(), value.clone());
            }
        }

        if self.tags.len() > TAGS_MAX {
            let count = self.tags.len();
            return Err(Error::validation(format!(
                "{count} tags exceed the maximum of {TAGS_MAX} of a table: remove some"
            )));
        }
        Ok(())
    }

    fn remove_tags(&mut self, keys: &[String]) {
        for key in keys {
            if key == USE_TAG {
                self.used_for = None;
            } else {
                self.tags.remove(key);
            }
        }
    }

    /// Returns all tags, even if the first item decided the use of the table.
    fn shown_tags(&self) -> Json {
        let use_tag = self.used_for.map(|used_for| (USE_TAG, used_for.as_str()));
        let others = self.tags.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        use_tag.into_iter().chain(others).map(|(key, value)| json!({"Key": key, "Value": value})).collect()
    }

    /// Describes the table to clients. Items are not counted, because that would need a pass over all of them.
    fn description(&self, entry_created: u64, region: &str, status: &str) -> Json {
        let attributes = || [Some(&self.partition), self.sort.as_ref()].into_iter().flatten();
        let (reads, writes) = self.throughput.unwrap_or_default();
        let mut description = json!({
            "TableName": self.name,
            "TableStatus": status,
            "TableArn": self.arn(region),
            // In the form of a UUID. A table that is made again under the same name has another one.
            "TableId": format!("00000000-0000-4000-8000-{entry_created:012x}"),
            "CreationDateTime": self.created_ms as f64 / 1000.0,
            "AttributeDefinitions": attributes()
                .map(|attribute| json!({"AttributeName": attribute.name, "AttributeType": attribute.kind}))
                .collect::<Vec<_>>(),
            "KeySchema": attributes()
                .zip(["HASH", "RANGE"])
                .map(|(attribute, role)| json!({"AttributeName": attribute.name, "KeyType": role}))
                .collect::<Vec<_>>(),
            "ProvisionedThroughput": {
                "ReadCapacityUnits": reads,
                "WriteCapacityUnits": writes,
                "NumberOfDecreasesToday": 0,
            },
            "ItemCount": 0,
            "TableSizeBytes": 0,
            "DeletionProtectionEnabled": self.protected,
        });

        if self.throughput.is_none() {
            description["BillingModeSummary"] = json!({"BillingMode": "PAY_PER_REQUEST"});
        }
        description
    }

    fn arn(&self, region: &str) -> String {
        format!("arn:aws:dynamodb:{region}:000000000000:table/{}", self.name)
    }
}

impl TableRequest {
    /// Refuses parameters that promise features which no table has here.
    fn check_what_is_not_there(&self) -> Result<()> {
        let has_stream = self.stream_specification.as_ref().is_some_and(|stream| stream.stream_enabled != Some(false));
        let asked = if has_stream {
            "streams are not supported here: leave out StreamSpecification, or set StreamEnabled to false"
        } else if self.resource_policy.is_some() {
            "resource policies are not supported here: leave out ResourcePolicy, and use the policy of the cluster"
        } else if self.replica_updates.as_ref().is_some_and(|updates| !updates.is_empty()) {
            "replicas in other regions are not supported here: leave out ReplicaUpdates"
        } else {
            return Ok(());
        };

        Err(Error::parameters(asked))
    }
}

fn check_count(count: usize, count_max: usize, at: &str) -> Result<()> {
    if count <= count_max {
        return Ok(());
    }
    let constraint = format!("Member must have length less than or equal to {count_max}");
    Err(Error::constraint(format!("{count} elements"), at, &constraint))
}

/// Checks the kinds of the elements of a key. Their number and order are checked later, as DynamoDB does.
fn check_key_types(schema: &[KeyElement]) -> Result<()> {
    for (element, position) in schema.iter().zip(1..) {
        if !["HASH", "RANGE"].contains(&&*element.key_type) {
            let at = format!("keySchema.{position}.member.keyType");
            let constraint = "Member must satisfy enum value set: [HASH, RANGE]";
            return Err(Error::constraint(&element.key_type, &at, constraint));
        }
    }
    Ok(())
}

/// Returns the element of the partition key, and that of the sort key if the table has one.
fn partition_and_sort(schema: &[KeyElement]) -> Result<(&KeyElement, Option<&KeyElement>)> {
    let (first, second) = match schema {
        [first] => (first, None),
        [first, second] => (first, Some(second)),
        _ => {
            let elements = format!("{} elements", schema.len());
            return Err(Error::constraint(elements, "keySchema", "Member must have length between 1 and 2"));
        }
    };

    if second.is_some_and(|second| second.attribute_name == first.attribute_name) {
        return Err(Error::validation(
            "Both the Hash Key and the Range Key element in the KeySchema have the same name",
        ));
    } else if first.key_type != "HASH" {
        return Err(Error::validation("Invalid KeySchema: The first KeySchemaElement is not a HASH key type"));
    } else if second.is_some_and(|second| second.key_type != "RANGE") {
        return Err(Error::validation("Invalid KeySchema: The second KeySchemaElement is not a RANGE key type"));
    }
    Ok((first, second))
}

/// Returns the key attribute of an element, with the type that its definition gives it.
fn attribute(definitions: &[Definition], element: &KeyElement) -> Result<Attribute> {
    let name = &element.attribute_name;
    let position = definitions.iter().position(|definition| definition.attribute_name == *name);
    let kind = position.map_or_else(String::new, |position| definitions[position].attribute_type.clone());

    if !["S", "N", "B"].contains(&&*kind) {
        let at = format!("attributeDefinitions.{}.member.attributeType", position.unwrap_or(0) + 1);
        return Err(Error::constraint(kind, &at, "Member must satisfy enum value set: [B, N, S]"));
    }
    if name.is_empty() || name.len() > 255 {
        return Err(Error::constraint(name, "keySchema", "Member must have length between 1 and 255"));
    }
    Ok(Attribute { name: name.clone(), kind })
}

/// Returns the read and write units, or `None` for a table that is paid for by request.
fn throughput(request: &TableRequest) -> Result<Option<(u64, u64)>> {
    let units = request.provisioned_throughput.as_ref();

    match request.billing_mode.as_deref() {
        Some("PAY_PER_REQUEST") if units.is_some() => Err(Error::parameters(
            "Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when BillingMode is PAY_PER_REQUEST",
        )),
        Some("PAY_PER_REQUEST") => Ok(None),
        None | Some("PROVISIONED") => {
            let both = units.and_then(|units| units.read_capacity_units.zip(units.write_capacity_units));
            let both = both.filter(|(reads, writes)| *reads > 0 && *writes > 0);
            both.map(Some).ok_or_else(|| {
                Error::parameters(
                    "ReadCapacityUnits and WriteCapacityUnits must both be specified when BillingMode is PROVISIONED",
                )
            })
        }
        Some(other) => Err(Error::constraint(
            other,
            "billingMode",
            "Member must satisfy enum value set: [PROVISIONED, PAY_PER_REQUEST]",
        )),
    }
}

fn not_found(name: &str) -> Error {
    Error::new(ErrorType::ResourceNotFound, format!("Requested resource not found: Table: {name} not found"))
}

impl<S: DynamoStore> Database<S> {
    pub(crate) async fn create_table(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Json> {
        let request: TableRequest = read(body)?;
        let name = table_name(request.table_name.as_ref())?;
        let table = TableProperties::requested(name, &request, (self.options.wall_ms)())?;
        let put = DynamoWrite::Put { key: key::table_key(name), value: table.encode(), lease: DynamoLease::None };
        let txn = DynamoTxn { expected: vec![(key::table_key(name), 0)], writes: vec![put] };

        loop {
            let committed = self.store.commit(caller, txn.clone()).await?;
            if committed.succeeded {
                let description = table.description(committed.revision, &self.options.region, "ACTIVE");
                return Ok(json!({"TableDescription": description}));
            }
            self.clear_name(caller.deadline, name).await?;
        }
    }

    /// Removes some items of the deleted table that has this name. Fails if the table was not deleted, or if time is short.
    async fn clear_name(&self, deadline: Instant, name: &str) -> Result<()> {
        let is_late = Instant::now() + ANSWER_TIME >= deadline;
        let in_use = |problem: String| Err(Error::new(ErrorType::ResourceInUse, problem));
        let port = DynamoCaller::port(deadline);
        let entry = self.store.get(&port, vec![key::table_key(name)]).await?.pop().flatten();

        match entry {
            Some(entry) if !TableProperties::decode(&entry.value)?.is_dropped => {
                in_use(format!("Table already exists: {name}"))
            }
            _ if is_late => in_use(format!(
                "Table is being deleted: {name}: the items of the table before are still being removed; try again in a \
                 few seconds"
            )),
            Some(entry) => self.sweep_table(&port, key::dropped_table_key(name, entry.created)).await,
            // Another request has deleted it.
            None => Ok(()),
        }
    }

    pub(crate) async fn describe_table(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Json> {
        let request: TableRequest = read(body)?;
        let name = table_name(request.table_name.as_ref())?;
        let (table, entry) = self.read_table(caller, name).await?;
        Ok(json!({"Table": table.description(entry.created, &self.options.region, "ACTIVE")}))
    }

    pub(crate) async fn update_table(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Json> {
        let request: TableRequest = read(body)?;
        if request.global_secondary_index_updates.is_some() {
            return Err(Error::parameters("secondary indexes are not supported here: GlobalSecondaryIndexUpdates"));
        }
        request.check_what_is_not_there()?;

        let name = table_name(request.table_name.as_ref())?;
        let changes_throughput = request.billing_mode.is_some() || request.provisioned_throughput.is_some();
        let throughput = changes_throughput.then(|| throughput(&request)).transpose()?;

        let change = |table: &mut TableProperties| {
            table.throughput = throughput.unwrap_or(table.throughput);
            table.protected = request.deletion_protection_enabled.unwrap_or(table.protected);
            Ok(())
        };

        let (table, entry) = self.change_table(caller, name, change).await?;
        Ok(json!({"TableDescription": table.description(entry.created, &self.options.region, "ACTIVE")}))
    }

    pub(crate) async fn list_tables(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Json> {
        let request: TableRequest = read(body)?;
        let limit = match request.limit {
            None => LIST_MAX,
            Some(limit) => {
                usize::try_from(limit).ok().filter(|limit| (1..=LIST_MAX).contains(limit)).ok_or_else(|| {
                    let constraint = if limit < 1 { "greater than or equal to 1" } else { "less than or equal to 100" };
                    Error::constraint(limit.to_string(), "limit", &format!("Member must have value {constraint}"))
                })?
            }
        };

        let start = request.exclusive_start_table_name.as_deref().unwrap_or_default();

        // The next key after a key is the same key with a zero byte.
        let from = if start.is_empty() { key::TABLES.into() } else { [&*key::table_key(start), &[0]].concat() };
        let page = self.store.list(caller, from, key::after(key::TABLES.as_bytes()), limit, false).await?;
        let last = page.entries.last().filter(|_| page.more).and_then(|(key, _)| key::table_name(key));

        // A table that cannot be read exists all the same.
        let is_there =
            |entry: &DynamoEntry| TableProperties::decode(&entry.value).map_or(true, |table| !table.is_dropped);
        let there = page.entries.iter().filter(|(_, entry)| is_there(entry));
        let names: Vec<_> = there.filter_map(|(key, _)| key::table_name(key)).collect();

        Ok(match last {
            None => json!({"TableNames": names}),
            Some(last) => json!({"TableNames": names, "LastEvaluatedTableName": last}),
        })
    }

    pub(crate) async fn delete_table(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Json> {
        let request: TableRequest = read(body)?;
        let name = table_name(request.table_name.as_ref())?;
        for _ in 0..TRIES {
            let (table, entry) = self.read_table(caller, name).await?;

            if table.protected {
                return Err(Error::validation(format!(
                    "Resource cannot be deleted as it is currently protected against deletion. Disable deletion \
                     protection first. Table: {name}"
                )));
            }

            let dropped = key::dropped_table_key(name, entry.created);
            let without_items = TableProperties { is_dropped: true, ..table.clone() };
            let writes = vec![
                DynamoWrite::Put { key: key::table_key(name), value: without_items.encode(), lease: DynamoLease::None },
                DynamoWrite::Put { key: dropped, value: Vec::new(), lease: DynamoLease::None },
            ];

            let txn = DynamoTxn { expected: vec![(key::table_key(name), entry.modified)], writes };
            if self.store.commit(caller, txn).await?.succeeded {
                self.dropped.notify_one();
                return Ok(json!({
                    "TableDescription": table.description(entry.created, &self.options.region, "DELETING")
                }));
            }
        }
        Err(Error::new(ErrorType::Throttled, format!("table {name} changes too often: try again")))
    }

    /// Removes some items of deleted tables, as the endpoint itself. Returns whether there may be more.
    pub(crate) async fn sweep(&self, deadline: Instant) -> Result<bool> {
        let port = DynamoCaller::port(deadline);
        let all = key::DROPPED.as_bytes();
        let page = self.store.list(&port, all.to_vec(), key::after(all), 1, false).await?;
        let Some((dropped, _)) = page.entries.into_iter().next() else { return Ok(false) };
        self.sweep_table(&port, dropped).await?;
        Ok(true)
    }

    /// Removes some items of a deleted table. If no item is left, removes the records of its deletion, so that its name is free.
    async fn sweep_table(&self, port: &DynamoCaller, dropped: Vec<u8>) -> Result<()> {
        let mut txn = DynamoTxn::default();
        if let Some((name, created)) = key::dropped_table(&dropped) {
            let items = key::items_prefix(name, created);
            let page = self.store.list(port, items.clone(), key::after(&items), SWEEP_ITEMS, false).await?;
            let left = page.entries.into_iter().filter(|_| !Planted::DeletedTableKeepsItems.is_on());
            txn.writes.extend(left.map(|(key, _)| DynamoWrite::Delete { key }));

            if txn.writes.is_empty() {
                let key = key::table_key(name);
                let entry = self.store.get(port, vec![key.clone()]).await?.pop().flatten();
                if let Some(entry) = entry.filter(|entry| entry.created == created) {
                    txn.expected.push((key.clone(), entry.modified));
                    txn.writes.push(DynamoWrite::Delete { key });
                }
                txn.writes.push(DynamoWrite::Delete { key: dropped });
            }
        } else {
            txn.writes.push(DynamoWrite::Delete { key: dropped });
        }

        self.store.commit(port, txn).await?;
        Ok(())
    }

    pub(crate) async fn update_time_to_live(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Json> {
        let request: TableRequest = read(body)?;
        let name = table_name(request.table_name.as_ref())?;
        let wanted = required(request.time_to_live_specification.as_ref(), "TimeToLiveSpecification")?;
        let attribute = required(wanted.attribute_name.as_ref(), "TimeToLiveSpecification.attributeName")?;
        let enabled = *required(wanted.enabled.as_ref(), "TimeToLiveSpecification.enabled")?;

        let change = |table: &mut TableProperties| {
            match (&table.time_to_live, enabled) {
                (Some(_), true) => return Err(Error::validation("TimeToLive is already enabled")),
                (None, false) => return Err(Error::validation("TimeToLive is already disabled")),
                (Some(other), false) if other != attribute => {
                    return Err(Error::validation(format!(
                        "TimeToLive is active on a different AttributeName: current AttributeName is {other}"
                    )));
                }
                (Some(_) | None, _) => table.time_to_live = enabled.then(|| attribute.clone()),
            }
            Ok(())
        };
        self.change_table(caller, name, change).await?;
        Ok(json!({"TimeToLiveSpecification": {"AttributeName": attribute, "Enabled": enabled}}))
    }

    pub(crate) async fn describe_time_to_live(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Json> {
        let request: TableRequest = read(body)?;
        let name = table_name(request.table_name.as_ref())?;
        let (table, _) = self.read_table(caller, name).await?;
        let description = match &table.time_to_live {
            Some(attribute) => json!({"AttributeName": attribute, "TimeToLiveStatus": "ENABLED"}),
            None => json!({"TimeToLiveStatus": "DISABLED"}),
        };
        Ok(json!({"TimeToLiveDescription": description}))
    }

    pub(crate) async fn tag_resource(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Json> {
        let request: TagsRequest = read(body)?;
        let tags = required(request.tags.as_ref(), "Tags")?;
        self.change_table(caller, request.table()?, |table| table.add_tags(tags)).await?;
        Ok(json!({}))
    }

    pub(crate) async fn untag_resource(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Json> {
        let request: TagsRequest = read(body)?;
        let keys = required(request.tag_keys.as_ref(), "TagKeys")?;
        let change = |table: &mut TableProperties| {
            table.remove_tags(keys);
            Ok(())
        };
        self.change_table(caller, request.table()?, change).await?;
        Ok(json!({}))
    }

    pub(crate) async fn list_tags_of_resource(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Json> {
        let request: TagsRequest = read(body)?;
        let (table, _) = self.read_table(caller, request.table()?).await?;
        Ok(json!({"Tags": table.shown_tags()}))
    }

    /// These items were written: the first of a table decide what it is used for, if no operator did. The endpoint notes it as itself,
    /// after the client's own write was allowed. Where that fails, the next write decides.
    pub(crate) async fn note_use<'a>(
        &self,
        caller: &DynamoCaller,
        known: &CachedTable,
        written: impl IntoIterator<Item = &'a ItemRecord>,
    ) {
        let mut written = written.into_iter().peekable();
        if known.table.used_for.is_some() || !self.options.recipes || written.peek().is_none() {
            return;
        }

        let rules = self.options.rules(&known.table);
        let is_of_locks = written.any(|record| recipes::is_of_lock_client(&record.item, rules));
        let used_for = if is_of_locks { TableUse::Locks } else { TableUse::Plain };

        let table = TableProperties { used_for: Some(used_for), ..known.table.clone() };
        let key = key::table_key(&known.table.name);
        let put = DynamoWrite::Put { key: key.clone(), value: table.encode(), lease: DynamoLease::None };
        let txn = DynamoTxn { expected: vec![(key, known.modified)], writes: vec![put] };
        _ = self.store.commit(&DynamoCaller::port(caller.deadline), txn).await;
    }

    async fn read_table(&self, caller: &DynamoCaller, name: &str) -> Result<(TableProperties, DynamoEntry)> {
        let mut found = self.store.get(caller, vec![key::table_key(name)]).await?;
        let entry = found.pop().flatten().ok_or_else(|| not_found(name))?;
        let table = TableProperties::decode(&entry.value)?;
        if table.is_dropped {
            return Err(not_found(name));
        }
        Ok((table, entry))
    }

    async fn change_table(
        &self,
        caller: &DynamoCaller,
        name: &str,
        change: impl Fn(&mut TableProperties) -> Result<()>,
    ) -> Result<(TableProperties, DynamoEntry)> {
        for _ in 0..TRIES {
            let (mut table, entry) = self.read_table(caller, name).await?;
            change(&mut table)?;

            let put = DynamoWrite::Put { key: key::table_key(name), value: table.encode(), lease: DynamoLease::None };
            let txn = DynamoTxn { expected: vec![(key::table_key(name), entry.modified)], writes: vec![put] };
            if self.store.commit(caller, txn).await?.succeeded {
                return Ok((table, entry));
            }
        }
        Err(Error::new(ErrorType::Throttled, format!("table {name} changes too often: try again")))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A table whose keys are these texts.
    pub(crate) fn lock_table(name: &str, keys: &[&str]) -> TableProperties {
        let attribute = |name: &&str| Attribute { name: (*name).to_owned(), kind: "S".to_owned() };
        TableProperties {
            format: FORMAT,
            name: name.to_owned(),
            partition: keys.first().map(attribute).expect("a key"),
            sort: keys.get(1).map(attribute),
            created_ms: 0,
            throughput: None,
            time_to_live: None,
            protected: false,
            tags: BTreeMap::new(),
            used_for: None,
            is_dropped: false,
        }
    }

    #[test]
    fn a_table_of_the_first_format_is_read_and_a_later_one_is_refused() {
        let first = r#"{"format":1,"name":"t","partition":{"name":"k","kind":"S"},"sort":null,"created_ms":0,"throughput":null,
            "time_to_live":null,"protected":false,"tags":{}}"#;
        let table = TableProperties::decode(first.as_bytes()).unwrap();
        assert_eq!(TableProperties { format: FORMAT, ..table }, lock_table("t", &["k"]));
        let later = first.replace("\"format\":1", "\"format\":3");
        assert!(TableProperties::decode(later.as_bytes()).unwrap_err().message.contains("upgrade this node"));
    }
}
