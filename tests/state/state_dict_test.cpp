#include "tutti/state/state_dict.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

namespace tutti::state_dict_test {
namespace {

TEST(StateDict, ReturnsTheLastValueThatWasSet) {
  StateDict state;
  EXPECT_TRUE(state.empty());
  state.set("lr", 0.5);
  state.set("lr", std::int64_t{3});
  EXPECT_EQ(state.get<std::int64_t>("lr"), 3);
  EXPECT_TRUE(state.contains("lr"));
  EXPECT_EQ(state.values().size(), 1U);
}

TEST(StateDict, NamesAValueThatIsMissingOrHasAnotherType) {
  StateDict state;
  state.set("lr", 2.0);
  const auto message = [&](const auto& get) -> std::string {
    try {
      get();
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_NE(message([&] { state.get<double>("momentum"); }).find("'momentum'"), std::string::npos);
  const auto wrong = message([&] { state.get<std::int64_t>("lr"); });
  EXPECT_NE(wrong.find("'lr'"), std::string::npos);
  EXPECT_NE(wrong.find("type"), std::string::npos);
}

TEST(StateDict, PartsAreNamedWithDots) {
  StateDict inner;
  inner.set("lr", 0.5);
  inner.set("group.0", true);
  StateDict state;
  state.set("optimizer", inner);
  state.set("optimizers", 1.0);
  state.set("optimizer", 2.0);
  EXPECT_EQ(state.get<double>("optimizer.lr"), 0.5);
  const StateDict part = state.part("optimizer");
  EXPECT_EQ(part.values().size(), 2U);
  EXPECT_TRUE(part.get<bool>("group.0"));
  EXPECT_TRUE(state.part("optimizer.group").get<bool>("0"));
  EXPECT_TRUE(state.part("optim").empty());
}

TEST(StateDict, ACopyHasItsOwnMemory) {
  const auto tensor = at::arange(6, at::kFloat).view({2, 3}).t().requires_grad_();
  StateDict state;
  state.set("tensor", tensor);
  state.set("text", std::string("as it was"));
  const StateDict copy = copy_to_cpu(state);
  const auto& copied = copy.get<at::Tensor>("tensor");
  EXPECT_TRUE(copied.equal(tensor));
  EXPECT_NE(copied.const_data_ptr(), tensor.const_data_ptr());
  EXPECT_TRUE(copied.is_contiguous() && !copied.requires_grad());
  EXPECT_EQ(copy.get<std::string>("text"), "as it was");
}

}  // namespace
}  // namespace tutti::state_dict_test
