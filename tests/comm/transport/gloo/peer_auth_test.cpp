// Ranks: none. Proofs of ranks, and of an unauthenticated process at a rank's address.
#include "comm/transport/gloo/peer_auth.h"

#include <gtest/gtest.h>

#include "tutti/core/error.h"

namespace tutti::test::peer_auth_test {
namespace {

using namespace tutti::comm;

JobSecretPtr secret(const std::string& text = "the secret of this job") {
  return std::make_shared<JobSecret>(text, "a test");
}

struct ThreeRanks {
  explicit ThreeRanks(const JobSecretPtr& of_all, const JobSecretPtr& of_two)
      : ranks{PeerAuth(of_all, 0), PeerAuth(of_all, 1), PeerAuth(of_two, 2)} {
    std::vector<std::string> all;
    for (const auto& rank : ranks) all.push_back(rank.attach_challenge("word " + std::to_string(all.size())));
    for (auto& rank : ranks)
      EXPECT_EQ(rank.detach_challenges(all, {0, 1, 2}), (std::vector<std::string>{"word 0", "word 1", "word 2"}));
  }
  std::vector<PeerAuth> ranks;
};

TEST(PeerAuth, AcceptsAProofFromItsRankOnly) {
  const ThreeRanks three(secret(), secret());
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      const auto proof = three.ranks[static_cast<std::size_t>(from)].proof_for(to);
      EXPECT_EQ(proof.size(), 32U);
      for (int as = 0; as < 3; ++as) {
        EXPECT_EQ(three.ranks[static_cast<std::size_t>(to)].verify(as, proof), as == from) << from << to << as;
      }
    }
  }
}

TEST(PeerAuth, RefusesProofsOfAnotherSecret) {
  const ThreeRanks three(secret(), secret("the secret of another job"));
  EXPECT_FALSE(three.ranks[0].verify(2, three.ranks[2].proof_for(0)));
  EXPECT_FALSE(three.ranks[2].verify(0, three.ranks[0].proof_for(2)));
  EXPECT_FALSE(three.ranks[0].verify(1, std::vector<std::byte>(32)));
  EXPECT_FALSE(three.ranks[0].verify(1, std::vector<std::byte>(1)));
}

// Proofs that were recorded when the same ranks connected before.
TEST(PeerAuth, RefusesProofsOfAnEarlierConnection) {
  const ThreeRanks before(secret(), secret());
  const ThreeRanks now(secret(), secret());
  EXPECT_FALSE(now.ranks[0].verify(1, before.ranks[1].proof_for(0)));
}

TEST(PeerAuth, AllRanksDetectRanksWithoutASecret) {
  PeerAuth with(secret(), 0);
  PeerAuth without(nullptr, 1);
  const std::vector<std::string> all{with.attach_challenge("one"), without.attach_challenge("other")};
  for (auto* rank : {&with, &without}) {
    try {
      rank->detach_challenges(all, {0, 1});
      ADD_FAILURE() << "taken";
    } catch (const UsageError& error) {
      const auto* part = rank == &with ? "rank 1 was started without a secret" : "rank 0 was started with a secret";
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(with.detach_challenges({with.attach_challenge(""), ""}, {0, 1}), UsageError);
}

}  // namespace
}  // namespace tutti::test::peer_auth_test
