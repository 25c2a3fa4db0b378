"""Votes: what any rank asks is known to all one vote later."""

from __future__ import annotations

from hpcpar.comm.vote import Vote
from hpcpar.comm.world import World


def test_all_ranks_learn_what_any_asked_one_vote_later(ranks: World) -> None:
    vote = Vote(ranks)
    everybody = (1 << ranks.size) - 1
    results = [vote.cast(1 << ranks.rank), vote.cast(4 if ranks.rank == ranks.size - 1 else 0),
               vote.cast(0), vote.cast(0)]
    vote.close()
    assert results == [0, everybody, 4, 0]


def test_a_rank_may_be_a_vote_ahead(ranks: World) -> None:
    """Nobody waits for ranks that have not voted yet."""
    vote = Vote(ranks)
    if ranks.rank == 0:
        vote.cast(1)
        ranks.bcast("voted")
    else:
        assert ranks.bcast(None) == "voted"
        vote.cast(0)
    assert vote.cast(0) == 1
    vote.close()
