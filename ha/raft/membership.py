"""Members that come and go (`Changes`), and one that lost its log and is let in again (`Readmission`).

A leader changes the members of its group by joint consensus, one change at a time:

    asked        judged by the table below
    joint        an entry with the voters to be and those before is in the log, and in force: every majority is one of
                 both groups from now on, of votes, disks, answers and reads
    committed    by both groups: nobody can lead any more that does not know the joint configuration
    final        the leader appends an entry with the new voters alone, which are in force at once
    committed    the change is over. A leader that is none of the voters hands over, or steps down

A leader that finds a joint configuration in its log completes it, whoever began it. An answer to who asked comes from
the leader that was asked only: another one knows nothing of the question.

The first row that applies is the outcome:

    this member does not lead                                   NOT_LEADER
    it has committed no entry of its term, or hands over, or    NOT_READY
    is no voter and has to go
    a configuration is joint, not committed, or to be appended  CHANGE_IN_PROGRESS
    it is the configuration in force                            NOTHING_TO_CHANGE
    there would be more than a group may have                   TOO_MANY
    there would be no voter                                     NO_QUORUM
    a new voter is no learner now, or lags                      NOT_CAUGHT_UP
    a member that lost its log has not caught up                NOT_CAUGHT_UP
    no majority of the voters to be was heard lately            NO_QUORUM

The second row stands in front because until then a leader does not know what is committed, nor what it owes to an
earlier one. The last is for people: a change that waits for members that are dead ends only with their coming back.

*Learners* are members that get the log and are in no majority. They differ from a member that lost its log: that one
is a voter, which others count, and it says itself that it may not be counted. A learner does not even know for sure:
it may have been promoted by an entry that it lacks. So it answers a candidate like every other member, and the
candidate counts by its own configuration. A member keeps from campaigning where it knows that it is no voter
(`ConfigHistory.has_voter`).

*Readmission.* A member that lost its log votes again when nothing hangs on what it lost. The peers know by the
incarnation that its log is another one (`ha.dledger.links.hello`), and tell it so once an operator has let it in. From
then on it follows, and neither votes nor campaigns nor counts for a majority, until both are true:

    met         every other member has told it its term since. So its own term is at least every term in which it had
                voted or confirmed entries, and a leader of an older term, which others have left, gets nothing of it
    caught up   its disk has all that a leader has committed, in that leader's own term and not below the terms above

That is enough. A leader of such a term was elected without the learner, by a majority that shares a member with every
majority the lost log was part of: it has all that was committed. A vote that the lost log gave is of no later term, and
in the leader's own term no second majority is left. An old grant or report of the lost log that somebody still counts
was true when it was given, and the entry behind it is committed before the learner can have caught up.

A member whose log was damaged, and is begun anew, learns in the same way, and knows by itself (`lost`). Its ballot is
whole, and with it the term in which it confirmed entries or voted last: it has to meet nobody.

The end is noted (`Effects.readmitted`), under the incarnation. A member that dies before the note is a learner again.
The argument is about one configuration, so a leader that hears of such a member changes none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ha.raft.draft import Draft
from ha.raft.leadership import Leadership
from ha.raft.log_state import LogState
from ha.raft.quorum import QuorumAckChecker
from ha.raft.types import ChangeResult, Config, MemberId, Run, Settings

VOTERS_MAX: Final = 9
MEMBERS_MAX: Final = 16


class Changes:
    """The change of the configuration that a member drives while it leads."""

    __slots__ = ("_me", "_ordered", "_settings", "_token")

    def __init__(self, me: MemberId, settings: Settings) -> None:
        self._me = me
        self._settings = settings
        self._ordered: Config | None = None
        """The configuration whose record the shell was told to append, until it says that it did."""
        self._token: int | None = None
        """The change that somebody waits for."""

    def ask(
        self,
        token: int,
        target: Config,
        leadership: Leadership | None,
        log: LogState,
        is_handing_over: bool,
        now: int,
        draft: Draft,
    ) -> None:
        """Begin the change to `target`, or say at once why not."""
        voters = tuple(sorted(set(target.voters)))
        learners = tuple(sorted(set(target.learners) - set(voters)))
        wanted = Config(voters, (), learners, target.incarnations)
        refusal = self._judge(wanted, leadership, log, is_handing_over, now)
        if refusal is not None:
            draft.changed.append((token, refusal))
            return
        self._token = token
        self._order(Config(voters, log.configs.in_force.voters, learners, target.incarnations), draft)

    def _judge(
        self,
        wanted: Config,
        leadership: Leadership | None,
        log: LogState,
        is_handing_over: bool,
        now: int,
    ) -> ChangeResult | None:
        if leadership is None:
            return ChangeResult.NOT_LEADER
        before = log.configs.in_force
        is_out = not before.old and self._me not in before.voters
        if not _is_open(leadership, log) or is_handing_over or is_out:
            return ChangeResult.NOT_READY
        if before.old or self._ordered is not None or log.configs.index > log.commit.index:
            return ChangeResult.CHANGE_IN_PROGRESS
        if wanted == before:
            return ChangeResult.NOTHING_TO_CHANGE
        if len(wanted.voters) > VOTERS_MAX or len(wanted.members) > MEMBERS_MAX:
            return ChangeResult.TOO_MANY
        if not wanted.voters:
            return ChangeResult.NO_QUORUM
        fresh = [voter for voter in wanted.voters if voter not in before.voters]
        if not all(voter in before.learners and self._is_close(voter, leadership, log) for voter in fresh):
            return ChangeResult.NOT_CAUGHT_UP
        if not all(each.counts for each in leadership.dispatchers.values()):
            return ChangeResult.NOT_CAUGHT_UP
        if not QuorumAckChecker(wanted).is_majority(
            [self._me, *leadership.heard_within(self._settings.election_min_ms, now)]
        ):
            return ChangeResult.NO_QUORUM
        return None

    def _is_close(self, learner: MemberId, leadership: Leadership, log: LogState) -> bool:
        dispatcher = leadership.dispatchers.get(learner)
        if dispatcher is None:
            return False
        lag = dispatcher.lag(log)
        settings = self._settings
        return lag is not None and lag[0] < settings.learner_lag_max and lag[1] < settings.learner_bytes_max

    def _order(self, config: Config, draft: Draft) -> None:
        self._ordered = draft.append_config = config

    def appended(self, run: Run) -> None:
        """Note that the leader's shell appended a record with a configuration."""
        if run.config == self._ordered:
            self._ordered = None

    def drive(self, leadership: Leadership, log: LogState, draft: Draft) -> None:
        """Go on with the change in the log."""
        configs = log.configs
        if self._ordered is not None or configs.index > log.commit.index or not _is_open(leadership, log):
            return
        config = configs.in_force
        if config.old:
            self._order(Config(config.voters, (), config.learners, config.incarnations), draft)
        elif self._token is not None:
            draft.changed.append((self._token, ChangeResult.SUCCESS))
            self._token = None

    def is_out(self, log: LogState) -> bool:
        """Return whether the group goes on without this leader: it is none of the voters, and that is committed."""
        config = log.configs.in_force
        return not config.old and self._me not in config.voters and log.configs.index <= log.commit.index

    def lost(self, draft: Draft) -> None:
        """End the change of a member that leads no more."""
        self._ordered = None
        if self._token is not None:
            draft.changed.append((self._token, ChangeResult.UNKNOWN))
            self._token = None


def _is_open(leadership: Leadership, log: LogState) -> bool:
    return 0 <= leadership.term_first <= log.commit.index


class Readmission:
    """The readmission of one member: its end, and the members that have still to tell it their terms."""

    __slots__ = ("_has_ballot", "_is_over", "_met", "is_learner", "others")

    def __init__(self, others: Iterable[MemberId], is_over: bool, lost: bool = False) -> None:
        """`is_over`: whether this log has ended its readmission in an earlier life.

        `lost`: whether the log before was lost and the ballot was not, so that this member begins as a learner.
        """
        self.others = tuple(others)
        """The other members of the group."""
        self._is_over = is_over
        self._met: dict[MemberId, int] = {}
        """The newest term that each other member has told in this life."""
        self.is_learner = self._has_ballot = lost

    @property
    def unmet(self) -> tuple[MemberId, ...]:
        """Return the members that have still to tell this learner their terms."""
        if not self.is_learner or self._has_ballot:
            return ()
        return tuple(peer for peer in self.others if peer not in self._met)

    @property
    def term(self) -> int:
        """Return the newest term that this member was told."""
        return max(self._met.values(), default=0)

    def met(self, peer: MemberId, term: int, lost: bool) -> bool:
        """Note the term of a peer, and whether it knows this member's log for lost. Return whether a learner begins.

        A term of -1: the peer is not in this group yet, and has still to tell one.
        """
        if term >= 0:
            self._met[peer] = max(term, self._met.get(peer, 0))
        begins = lost and not self._is_over and not self.is_learner
        if lost and not self._is_over:
            self._has_ballot = False  # the ballot was lost, too
        self.is_learner |= begins
        return begins

    def ends(self, log: LogState, matched: int, leader_commit: int, term: int) -> bool:
        """Return whether the learner votes from now on; `matched` and `leader_commit` are of the leader of `term`."""
        if not self.is_learner or self.unmet or leader_commit < 0:
            return False
        assert term >= self.term, (term, self._met)
        if min(matched, log.durable) < leader_commit or log.terms.term_at(leader_commit) != term:
            return False  # it lacks something, or the leader has committed nothing in its own term yet
        self.is_learner, self._is_over = False, True
        return True
