//! The bugs, each with what it does and with its name, by how they are found.

/// Makes the enum, its lists and its names of one table, so that no bug is missing in one of them.
macro_rules! planted {
    ($($(#[$group_doc:meta])* $group:ident {
        $($(#[doc = $text:literal])+ $bug:ident = $name:literal,)+
    })+) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Planted {
            $($($(#[doc = $text])+ $bug,)+)+
        }

        impl Planted {
            /// All of them.
            pub const ALL: [Self; [$($($name,)+)+].len()] = [$($(Self::$bug,)+)+];

            $($(#[$group_doc])* pub const $group: &[Self] = &[$(Self::$bug,)+];)+

            /// The name for the environment variable.
            pub fn name(self) -> &'static str {
                match self {
                    $($(Self::$bug => $name,)+)+
                }
            }

            /// What is wrong with it on, as a sentence.
            pub fn effect(self) -> &'static str {
                match self {
                    $($(Self::$bug => concat!($($text),+).trim_ascii(),)+)+
                }
            }
        }
    };
}

planted! {
    /// Bugs that runs under faults show as violations of properties.
    FAULTS {
        /// The log reports entries and votes as durable before they are.
        AckBeforeSync = "ack-before-sync",
        /// Snapshots lack the highest token: a node that restores one issues tokens twice.
        TokenNotInSnapshot = "token-not-in-snapshot",
        /// Snapshots lack the remembered replies: a retry takes effect twice.
        RepliesNotInSnapshot = "replies-not-in-snapshot",
        /// Snapshots lack the queue: waiters are forgotten.
        QueueNotInSnapshot = "queue-not-in-snapshot",
        /// Any node that believes to lead answers reads, without asking a quorum.
        ReadWithoutIndex = "read-without-index",
        /// A wait whose call broke off is never answered, even if the same request is repeated.
        WaitLostOnDisconnect = "wait-lost-on-disconnect",
        /// A release ends the oldest grant of its session, whatever its token.
        ReleaseIgnoresToken = "release-ignores-token",
        /// Stamps are read from wall clocks, which differ between nodes.
        StampFromWallClock = "stamp-from-wall-clock",
        /// A session ends after three quarters of its TTL.
        EarlyExpiry = "early-expiry",
        /// A reader is granted a lock while a writer waits.
        ReaderOvertakes = "reader-overtakes",
        /// A dead holder's session never ends.
        NoExpiry = "no-expiry",
        /// A grant that was taken by force is forgotten at once: its holder is told by a single notice, or never.
        RevocationNotKept = "revocation-not-kept",
    }

    /// Bugs that need a change of the membership at a certain moment: the seeds of `tests/simulation` find them, other runs are not
    /// expected to.
    SEEDED {
        /// A node that was removed still takes part: the others admit its calls, and it does not end.
        RemovedTakenIn = "removed-taken-in",
    }

    /// Bugs that neither random faults nor seeds are expected to find. A scenario in `tests/calibration` detects each of them.
    STAGED {
        /// A read is confirmed by answers that were under way before it began, as openraft does.
        LateAnswersConfirm = "late-answers-confirm",
        /// A leader counts the acknowledgements of learners as those of voters: with a learner on its side it does not notice its
        /// deposition.
        LearnerCounts = "learner-counts",
        /// A node whose data is gone is accepted under its old id.
        LostDataTakenIn = "lost-data-taken-in",
        /// A node on an older copy of its data is accepted.
        OlderCopyTakenIn = "older-copy-taken-in",
        /// A client counts its deadline from the receipt of the answer, not from the sending.
        DeadlineFromReceipt = "deadline-from-receipt",
        /// A snapshot is renamed before its content is synced.
        SnapshotNotSynced = "snapshot-not-synced",
        /// A received snapshot becomes the table before it is durable.
        SnapshotUsedBeforePublished = "snapshot-used-before-published",
        /// A snapshot contains a later table than its index says.
        SnapshotOfLaterTable = "snapshot-of-later-table",
        /// A renewal is acknowledged before it is committed.
        RenewalAckedEarly = "renewal-acked-early",
        /// A leader continues with its clock of an earlier term.
        ClockOfEarlierTerm = "clock-of-earlier-term",
        /// A batch has the stamp that the ticker read last, not one of its own.
        StampFromCache = "stamp-from-cache",
        /// A file is renamed to its final name, and the directory is not synced.
        NameNotSynced = "name-not-synced",
        /// The older snapshot is deleted before the newer one is durable.
        OlderSnapshotDeletedFirst = "older-snapshot-deleted-first",
        /// A read asks a quorum, but does not wait until its own table has applied the read index.
        ReadWithoutApply = "read-without-apply",
        /// A batch is not bound to the term in which it was stamped.
        BatchOfEarlierTerm = "batch-of-earlier-term",
        /// A watch subscribes to changes only after it has read the state.
        WatchAfterState = "watch-after-state",
        /// The end of a wait is reported before the calls of the same batch are registered.
        EndToldBeforeCall = "end-told-before-call",
        /// A guard counts as held after its release was sent.
        TrustedWhileReleasing = "trusted-while-releasing",
        /// A session counts as alive after its close was sent.
        TrustedWhileClosing = "trusted-while-closing",
        /// A call that broke off between a follower and the leader is reported as having had no effect.
        LostForwardedIsSafe = "lost-forwarded-is-safe",
        /// A node records an applied entry as its own before its own disk has it.
        NotedBeforeDurable = "noted-before-durable",
        /// A keep-alive stream reports that a session was renewed, and only then which of its grants are revoked.
        RevokedAfterRenewed = "revoked-after-renewed",
        /// A cluster that is restored from a backup goes on with the tokens of the backup.
        RestoreForgetsTokenOffset = "restore-forgets-token-offset",
    }

    /// Bugs that no scenario forces: the suites run as they are, and find them. `tests/PROOF.md` shows which suite finds which bug.
    SUITES {
        // The keyspace, and what is beside it in the table.
        /// A transaction that was judged as a whole is judged again by its steps as it is carried out: at a limit no node can apply its
        /// entry.
        TxnJudgedAgain = "txn-judged-again",
        /// The name of its owner makes a transaction longer than a transaction may be.
        OwnerOutgrowsTxn = "owner-outgrows-txn",
        /// A session that has an owner gets another one.
        OwnerReplaced = "owner-replaced",
        /// What a session has that gets its owner late is charged to nobody.
        LateOwnerUncharged = "late-owner-uncharged",
        /// A compare of a key that has no entry holds.
        CompareOfAbsentHolds = "compare-of-absent-holds",
        /// An entry whose lease is over is there for everybody until the end of its session is handled.
        EndedLeaseInForce = "ended-lease-in-force",
        /// A deletion of a range spares what the same transaction has put before.
        DeleteSparesOwnPuts = "delete-spares-own-puts",
        /// A read of a range does not see what the same transaction has written before.
        SelectMissesOwnWrites = "select-misses-own-writes",
        /// Each put of an entry counts as its creation.
        CreatedByEachPut = "created-by-each-put",
        /// A put that renews the lease of its entry does not extend it.
        RenewingPutExtendsNothing = "renewing-put-extends-nothing",
        /// An entry that claims a lock holds it, whoever else does.
        ClaimsShareLock = "claims-share-lock",
        /// An entry that is put with another lease keeps its claim, and with it the token of the holder before.
        ClaimOutlivesLease = "claim-outlives-lease",
        /// A lock passes on to a claim whose lease is over.
        DeadClaimGranted = "dead-claim-granted",
        /// An entry whose lock an operator took back is not marked: its former holder may renew it.
        ForcedClaimUnmarked = "forced-claim-unmarked",
        /// The deletion of an entry leaves no event in the history.
        DeletionWithoutEvent = "deletion-without-event",
        /// A watch that resumes after a revision is sent the events of that revision again.
        HistoryRepeatsEvent = "history-repeats-event",
        /// The history forgets a part of a revision.
        HistorySplitsRevision = "history-splits-revision",
        /// A read of the past leaves out the oldest of the runs by which changes are found.
        OldestRunUnread = "oldest-run-unread",
        /// A read of the past shows the present entry.
        PastReadsPresent = "past-reads-present",
        /// A transaction that renews or gives back counts as one that asks for more: it is refused first under pressure.
        HeartbeatAsksForMore = "heartbeat-asks-for-more",
        /// What a transaction visits in ranges counts for no budget of work.
        RangesCostNothing = "ranges-cost-nothing",
        /// Entries that are under way count for no range that is judged before they are in the table: a batch may visit them all, for each.
        EntriesUnderWayUncounted = "entries-under-way-uncounted",
        /// The answers that adapters keep count as all else, and take the places of sessions and entries from others.
        MemoriesTakeSessions = "memories-take-sessions",
        /// A child that ends with its lease, or at its deadline, stays in the count of its parent.
        ChildEndUncounted = "child-end-uncounted",
        /// The number of a child is given again after another child has ended.
        ChildNumberReused = "child-number-reused",
        /// An entry is deleted though it has children.
        ParentDeletedWithChildren = "parent-deleted-with-children",
        /// A child is made below an entry that may end by itself.
        ChildBelowLease = "child-below-lease",
        /// To make or to end a child counts as a write of its parent.
        ChildModifiesParent = "child-modifies-parent",
        /// A connection that lost its session to another one goes on to write by it.
        MovedSessionWrites = "moved-session-writes",
        /// The cluster version falls if a leader that knew less raises it.
        VersionLowered = "version-lowered",
        /// A command of the keyspace is proposed in a cluster whose members may not know it.
        CommandBeforeItsVersion = "command-before-its-version",
        /// Two clusters that are restored from one backup issue the same tokens.
        RestoredTwiceAlike = "restored-twice-alike",
        /// A restored cluster has its sessions under the ids that their clients know.
        RestoredSessionsKeepIds = "restored-sessions-keep-ids",
        /// A restored cluster grants locks at once, while holders of the lost one may still trust theirs.
        RestoredOpensAtOnce = "restored-opens-at-once",
        /// A restored cluster renews locks by their values while it grants none.
        RestoredRenews = "restored-renews",
        /// A key that cannot be the name of a lock claims none, so a restored cluster that grants no lock makes an entry under it.
        RestoredUnnamed = "restored-unnamed",
        /// A restored cluster lets a watch go on after a revision of the lost one, with a gap.
        RestoredHistoryGoesOn = "restored-history-goes-on",
        /// The entries of a restored cluster have a later revision than the one at which their clients wrote them.
        RestoredRevisionsAnew = "restored-revisions-anew",
        /// A remembered reply answers another request under the same id.
        ReplyToAnotherRequest = "reply-to-another-request",

        // Values at the edges of fields.
        /// A transaction may have one compare, or one operation of a branch, beyond the limit.
        TxnOverByOne = "txn-over-by-one",
        /// A prefix that has as many bytes as it may have is refused.
        LongestPrefixRefused = "longest-prefix-refused",
        /// A semaphore of no permits is taken for one of a single permit.
        NoPermitsAsOne = "no-permits-as-one",

        // Limits of identities.
        /// A limit of an identity is compared with what the identity has, without what it asks for: it may have one more.
        AskedForUncounted = "asked-for-uncounted",
        /// The sessions of all clients count for the limit of each identity.
        OthersSessionsCounted = "others-sessions-counted",
        /// An identity that pauses may make any number of calls at once.
        SavedCallsUnbounded = "saved-calls-unbounded",
        /// The calls that an identity has made are given back at half the rate.
        CallsGivenBackSlowly = "calls-given-back-slowly",

        // The applied table, watches and the audit trail.
        /// The audit trail has a line of an operator's act that was refused.
        RefusedActAudited = "refused-act-audited",
        /// The audit trail does not say who took a lock back.
        AuditForgetsWho = "audit-forgets-who",
        /// A watch of locks that resumes goes on after changes that are forgotten, as if there had been none.
        ChangesWithGap = "changes-with-gap",
        /// A watch of entries is woken by its first event, and never again.
        WatchWokenOnce = "watch-woken-once",
        /// A watch of a range that is no prefix is not woken.
        RangeWatchNotWoken = "range-watch-not-woken",
        /// Events are looked at before earlier ones that were left to the dispatcher: watches miss those.
        WatchesOutOfOrder = "watches-out-of-order",
        /// The hash of an audit line does not cover the line before it.
        AuditLinesUnchained = "audit-lines-unchained",
        /// A node waits for a disk of the audit trail that does not answer, and with it, if it leads, the cluster.
        HungAuditDiskAwaited = "hung-audit-disk-awaited",
        /// Audit lines that a killed process had not synced are taken for synced by the next one.
        AuditLinesNeverSynced = "audit-lines-never-synced",
        /// A sync of the audit files succeeds though they were closed before the last lines were written.
        ClosedSinkVouches = "closed-sink-vouches",

        // Rights and fences.
        /// A node that has lost the leader goes on to answer for sessions of ZooKeeper's clients, which may have ended elsewhere.
        VouchesForEver = "vouches-for-ever",
        /// Who may read under a prefix may read a range that begins there, wherever it ends.
        RangeBeyondPrefix = "range-beyond-prefix",
        /// A rule for everybody with a name holds for anonymous callers, too.
        AnonymousIsAnybody = "anonymous-is-anybody",
        /// A node that forwards a call does not say whose it is.
        ForwardedAsAnonymous = "forwarded-as-anonymous",
        /// Who knows the id of a session may use it, whoever owns it.
        SessionOfAnybody = "session-of-anybody",
        /// A token that no node knows is worth as much as none.
        UnknownTokenIsAnonymous = "unknown-token-is-anonymous",
        /// A file of tokens or rules counts while it is being written: who is not in it yet loses access.
        HalfCopiedFileCounts = "half-copied-file-counts",
        /// The policy is read when a node starts, and never again.
        PolicyReadOnce = "policy-read-once",
        /// Who waits for a lock waits on when the policy no longer lets it acquire the lock, and may be granted it.
        DeniedWaitGoesOn = "denied-wait-goes-on",
        /// The file of tokens is read when a node starts, and never again: a token cannot be withdrawn.
        TokensReadOnce = "tokens-read-once",
        /// A fence admits a sharer whose lock an exclusive holder had meanwhile.
        SharerAlwaysAdmitted = "sharer-always-admitted",
        /// A fence admits a token before its store has it.
        FenceAdmitsUnsaved = "fence-admits-unsaved",

        // etcd's API.
        /// A put of etcd's that is to keep the lease of its key drops it.
        KeptLeaseDropped = "kept-lease-dropped",
        /// A transaction of etcd's that is decided by ranges commits though an entry came into one meanwhile.
        DecidedOnOldRanges = "decided-on-old-ranges",
        /// A transaction of etcd's that is decided by reads follows its last compare alone.
        LastCompareDecides = "last-compare-decides",
        /// A lease of etcd's that exists is granted to another client.
        LeaseGrantedAgain = "lease-granted-again",
        /// A keep-alive of etcd's says that a lease is renewed that has ended.
        EndedLeaseRenewed = "ended-lease-renewed",
        /// The queue of etcd's locks goes by the names of keys, not by their age.
        QueueByKey = "queue-by-key",
        /// A call for a lock of etcd's that breaks off takes the place away from the same client's next call.
        RetryLosesPlace = "retry-loses-place",
        /// A node answers a caller for a lock of etcd's from a copy that has not seen the caller's own key.
        CopyBehindItsWrite = "copy-behind-its-write",
        /// A watch of etcd's ends without a word when its node cannot go on with it.
        WatchEndsSilently = "watch-ends-silently",
        /// A watch of etcd's that begins in the past is created with the present revision: a client that reconnects misses what is
        /// between.
        WatchCreatedAtPresent = "watch-created-at-present",
        /// The pages of one read of etcd's are of several revisions.
        PagesOfSeveralRevisions = "pages-of-several-revisions",
        /// A watch of etcd's that wants no deletions is sent them.
        DeletionsUnfiltered = "deletions-unfiltered",

        // DynamoDB's API.
        /// A put of DynamoDB's over a lock whose lease is over is answered with success, and holds nothing.
        PutHoldsNothing = "put-holds-nothing",
        /// The answer to a request of DynamoDB's is repeated though its effect is gone, and another holds the lock.
        AnswerWithoutEffect = "answer-without-effect",
        /// An item of DynamoDB's with attributes of somebody else is deleted with the lease that it seems to have.
        LookalikeDeleted = "lookalike-deleted",
        /// A write of DynamoDB's commits though another one came after its read.
        ReadNotInCommit = "read-not-in-commit",
        /// An update of DynamoDB's by its old values happens again when it is sent again.
        RetryCountsTwice = "retry-counts-twice",
        /// A signature of DynamoDB's need not cover the operation.
        SignatureWithoutTarget = "signature-without-target",
        /// A request of DynamoDB's has no budget of work.
        WorkWithoutBound = "work-without-bound",
        /// The items of a deleted table are there again in the next table of that name.
        DeletedTableKeepsItems = "deleted-table-keeps-items",
        /// The next holder of a lock of DynamoDB's has the token of the one before.
        NewHolderOldToken = "new-holder-old-token",
        /// A transaction of DynamoDB's that is sent again counts as another one if its fields have another order.
        RepeatComparedByBytes = "repeat-compared-by-bytes",

        // Redis' protocol.
        /// A script or a transaction of Redis' commits though a key that it only read was written meanwhile.
        ReadKeysNotCompared = "read-keys-not-compared",
        /// A script of Redis' that compares a lock's value and deletes or extends the lock takes any value for the right one.
        RedisValueUncompared = "redis-value-uncompared",
        /// What a transaction or a script of Redis' has read may have changed when it commits.
        RedisReadNotInCommit = "redis-read-not-in-commit",
        /// Who gets a lock of Redis' from its holder, by another value in the same key, has the token of the one before.
        RedisHandOverKeepsToken = "redis-hand-over-keeps-token",
        /// Subscribers of Redis' stay connected though their node could not renew their subscription, and others count them no more.
        RedisLapsedSubscriberKept = "redis-lapsed-subscriber-kept",
        /// Subscribers of Redis' stay connected though their node has lost the feed of messages for a while.
        RedisFeedGapUntold = "redis-feed-gap-untold",
        /// Commands of one connection that were sent together take effect in another order.
        SentTogetherSwapped = "sent-together-swapped",
        /// A client of Redis' that waits for a sorted set keeps those behind it from a list that is pushed under the same key.
        WaiterOfAnyKind = "waiter-of-any-kind",
        /// Clients of Redis' may publish on the channels by which Sentinel says which server is the master.
        SentinelOfAnybody = "sentinel-of-anybody",
        /// The time of Redis' goes back if the clock of the next leader is behind.
        TimeGoesBack = "time-goes-back",
        /// The time of Redis' follows a clock of an earlier leader that was wrong by hours.
        WrongClockFollowed = "wrong-clock-followed",

        // ZooKeeper's protocol.
        /// A write of ZooKeeper's takes effect though one that was sent before it failed and is still to be done.
        WriteOvertakesFailed = "write-overtakes-failed",
        /// A watch of ZooKeeper's that is set again, on a node that its client may not read, is left out without a word.
        WatchLeftOut = "watch-left-out",
        /// A watch of ZooKeeper's tells of nodes that its client may not read.
        WatchTellsAll = "watch-tells-all",

        // Membership, elections, disks, restores.
        /// The id of a removed member is given again.
        RemovedIdComesBack = "removed-id-comes-back",
        /// A voter is removed though the others have no majority that answers.
        RemovalLosesQuorum = "removal-loses-quorum",
        /// A change of the membership begins while a learner is on its way to become a voter.
        SeveralLearnersAtOnce = "several-learners-at-once",
        /// A follower that does not hear its leader stands for election, whoever else hears it.
        OneFollowerDeposes = "one-follower-deposes",
        /// One slow sync moves the leadership.
        SlowByOneSample = "slow-by-one-sample",
        /// A learner counts among those to whom a leader with a slow disk compares itself.
        LearnerMeasured = "learner-measured",
        /// The leadership is handed to a voter that does not answer.
        HandoverToSilent = "handover-to-silent",
        /// The leadership is handed to a voter that lacks many entries.
        HandoverToLaggard = "handover-to-laggard",
        /// One disk that is nearly full makes the cluster refuse what adds.
        OneFullDiskRefuses = "one-full-disk-refuses",
        /// The cluster version rises before all members support it.
        VersionRaisedEarly = "version-raised-early",
        /// The log of a restored cluster goes on at the next index of the copy, as that of another one does.
        FoundedAtOldIndex = "founded-at-old-index",
        /// The log of a restored cluster begins so high that no new member takes its entries.
        FoundedBeyondReach = "founded-beyond-reach",
        /// A recovery does not apply the first entry after the snapshot.
        RecoveryPassesEntry = "recovery-passes-entry",
        /// A recovery ends with the snapshot, unless the operator names another entry: what came after it is lost.
        RecoveryForgetsLog = "recovery-forgets-log",
        /// A snapshot counts before the audit lines of its entries are on the disk.
        SnapshotBeforeAuditSync = "snapshot-before-audit-sync",
        /// A recovery makes the audit lines of the log as those of no cluster, if the trail begins there.
        RecoveredTrailOfNobody = "recovered-trail-of-nobody",
        /// A recovery takes a log that is gone for one that is empty.
        RecoveredWithoutLog = "recovered-without-log",
        /// Now and then an entry of the log lacks its last byte: no node can read it.
        EntryCutShort = "entry-cut-short",
        /// A command is proposed that is beyond a limit, or cannot be read again.
        EntryProposedUnread = "entry-proposed-unread",
        /// Large transactions need no turn, and small commands wait behind all of them.
        LargeNeedsNoTurn = "large-needs-no-turn",
        /// A command that is refused, since the queue is nearly full, takes effect once there is room.
        RefusedIsProposed = "refused-is-proposed",
        /// A follower that tells the leader of an operator's act does not say which incarnation it means: no leader is told.
        NoteToAnyIncarnation = "note-to-any-incarnation",
        /// A node whose table is another one than the majority's goes on.
        DifferingTableGoesOn = "differing-table-goes-on",
        /// A member that is away keeps the leader from purging its log, however long it grows.
        AbsentMemberKeepsLog = "absent-member-keeps-log",
        /// A start of a node is forgotten with the next one, though peers were shown it.
        ShownStartForgotten = "shown-start-forgotten",
        /// The log says that an entry is committed while an entry that it has replaced is still there.
        CommitBeforeRemoval = "commit-before-removal",

        // The journal.
        /// A damaged record at the end of the journal is taken for one that was never completely written.
        DamageTakenForTear = "damage-taken-for-tear",
        /// The journal reports a record as durable that it has not synced.
        JournalNotSynced = "journal-not-synced",
        /// The journal keeps no room for the sector that shows where its records end.
        JournalWithoutEnd = "journal-without-end",

        // Adapters and connections.
        /// An adapter repeats a request that may have had an effect.
        UnknownTriedAgain = "unknown-tried-again",
        /// A session that a transaction opens belongs to nobody.
        OwnerNotNoted = "owner-not-noted",
        /// A connection with open calls is closed for a new one, while idle ones stay.
        BusyConnectionClosed = "busy-connection-closed",
    }
}
