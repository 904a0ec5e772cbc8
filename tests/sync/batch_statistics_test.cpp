#include "sync/batch_statistics.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace tutti::sync::batch_statistics_test {
namespace {

constexpr std::array<std::int64_t, 2> all_but_channels{0, 2};

at::Tensor values(std::int64_t samples, double offset) {
  const at::Tensor numbers = at::arange(samples * 3 * 2, at::kDouble).reshape({samples, 3, 2});
  return (numbers * 0.7).sin() + offset;
}

BatchStatistics of_pieces(const at::Tensor& all, const std::vector<std::int64_t>& sizes) {
  std::vector<at::Tensor> rows;
  for (const at::Tensor& piece : all.split_with_sizes(sizes)) rows.push_back(pack(statistics_of(piece)));
  return combine(at::stack(rows));
}

TEST(BatchStatistics, PiecesOfAnySizeCombineToThoseOfAll) {
  const at::Tensor all = values(7, 0.5);
  for (const std::vector<std::int64_t>& sizes :
       std::vector<std::vector<std::int64_t>>{{7}, {3, 4}, {1, 6}, {0, 7}, {2, 0, 5}, {1, 1, 1, 1, 1, 1, 1}}) {
    const auto combined = of_pieces(all, sizes);
    EXPECT_EQ(combined.count, 14);
    EXPECT_TRUE(at::allclose(combined.mean, all.mean(all_but_channels), 1e-14, 0));
    EXPECT_TRUE(at::allclose(combined.variance, all.var(all_but_channels, false), 1e-14, 0));
  }
}

// Sums of squares around zero would be 1e12 here: a variance of 0.5 would keep four digits.
TEST(BatchStatistics, AMeanFarFromZeroDoesNotCancel) {
  const at::Tensor all = values(8, 1e6);
  const auto combined = of_pieces(all, {2, 6});
  EXPECT_TRUE(at::allclose(combined.variance, all.var(all_but_channels, false), 1e-8, 0)) << combined.variance;
}

TEST(BatchStatistics, OfNothing) {
  const auto combined = of_pieces(values(0, 0), {0, 0});
  EXPECT_EQ(combined.count, 0);
  EXPECT_TRUE(at::equal(combined.variance, at::zeros({3}, at::kDouble)));
}

}  // namespace
}  // namespace tutti::sync::batch_statistics_test
