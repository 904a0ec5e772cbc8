// Ranks: none. What ranks say first, and what a stranger in a rank's place says.
#include "comm/mesh/first_words.h"

#include <gtest/gtest.h>

#include "tutti/core/error.h"

namespace tutti::test::first_words_test {
namespace {

using namespace tutti::comm;

JobSecretPtr secret(const std::string& text = "the secret of this job") {
  return std::make_shared<JobSecret>(text, "a test");
}

struct Three {
  explicit Three(const JobSecretPtr& of_all, const JobSecretPtr& of_two)
      : ranks{FirstWords(of_all, 0), FirstWords(of_all, 1), FirstWords(of_two, 2)} {
    std::vector<std::string> all;
    for (const auto& rank : ranks) all.push_back(rank.with_challenge("word " + std::to_string(all.size())));
    for (auto& rank : ranks)
      EXPECT_EQ(rank.without_challenges(all, {0, 1, 2}), (std::vector<std::string>{"word 0", "word 1", "word 2"}));
  }
  std::vector<FirstWords> ranks;
};

TEST(FirstWords, AreTakenFromTheRankThatSaysThem) {
  const Three three(secret(), secret());
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      const auto words = three.ranks[static_cast<std::size_t>(from)].to(to);
      EXPECT_EQ(words.size(), 32U);
      for (int as = 0; as < 3; ++as) {
        EXPECT_EQ(three.ranks[static_cast<std::size_t>(to)].are_from(as, words), as == from) << from << to << as;
      }
    }
  }
}

TEST(FirstWords, OfAnotherSecretAreNot) {
  const Three three(secret(), secret("the secret of another job"));
  EXPECT_FALSE(three.ranks[0].are_from(2, three.ranks[2].to(0)));
  EXPECT_FALSE(three.ranks[2].are_from(0, three.ranks[0].to(2)));
  EXPECT_FALSE(three.ranks[0].are_from(1, std::vector<std::byte>(32)));
  EXPECT_FALSE(three.ranks[0].are_from(1, std::vector<std::byte>(1)));
}

// Heard when the same ranks connected before.
TEST(FirstWords, AreNoneAnotherTime) {
  const Three before(secret(), secret());
  const Three now(secret(), secret());
  EXPECT_FALSE(now.ranks[0].are_from(1, before.ranks[1].to(0)));
}

TEST(FirstWords, SomeRanksWithoutASecretAreFoundByAll) {
  FirstWords with(secret(), 0);
  FirstWords without(nullptr, 1);
  const std::vector<std::string> all{with.with_challenge("one"), without.with_challenge("other")};
  for (auto* rank : {&with, &without}) {
    try {
      rank->without_challenges(all, {0, 1});
      ADD_FAILURE() << "taken";
    } catch (const UsageError& error) {
      const auto* part = rank == &with ? "rank 1 was started without a secret" : "rank 0 was started with a secret";
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(with.without_challenges({with.with_challenge(""), ""}, {0, 1}), UsageError);
}

}  // namespace
}  // namespace tutti::test::first_words_test
