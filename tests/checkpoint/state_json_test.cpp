#include "checkpoint/state_json.h"

#include <gtest/gtest.h>

#include "checkpoint/scratch.h"
#include "checkpoint/states.h"
#include "checkpoint/tied_tensors.h"

namespace tutti::test::state_json_test {
namespace {

using nlohmann::json;

TEST(StateJson, EveryTypeOfValueIsRestoredBitForBit) {
  StateDict without_tensors;
  const StateDict state = every_kind_of_value();
  for (const auto& [name, value] : state.values()) {
    if (!std::holds_alternative<at::Tensor>(value)) without_tensors.set(name, value);
  }
  const std::string text = checkpoint::to_json(state).dump(1);
  EXPECT_TRUE(same(without_tensors, checkpoint::state_from_json(json::parse(text))));
}

TEST(StateJson, HasTheDocumentedForm) {
  StateDict state;
  state.set("a", 2.0);
  state.set("b", std::int64_t{2});
  state.set("c", std::vector<double>{});
  state.set("d", std::vector<std::int64_t>{1});
  state.set("e", std::numeric_limits<double>::infinity());
  EXPECT_EQ(checkpoint::to_json(state).dump(),
            R"({"a":2.0,"b":2,"c":{"doubles":[]},"d":{"integers":[1]},"e":{"bits":"7ff0000000000000"}})");
}

TEST(StateJson, RefusesTextThatIsNotUtf8NamingIt) {
  StateDict state;
  state.set("note", std::string("caf\xe9"));
  expect_error<UsageError>([&] { checkpoint::to_json(state); }, {"'note'", "UTF-8"});
  StateDict name;
  name.set("caf\xe9", true);
  EXPECT_THROW(checkpoint::to_json(name), UsageError);
}

TEST(StateJson, RefusesValuesOfOtherForms) {
  for (const char* text :
       {R"({"a":null})", R"({"a":[1]})", R"({"a":{}})", R"({"a":{"integers":[1.0]}})", R"({"a":{"integers":1}})",
        R"({"a":{"doubles":[1]}})", R"({"a":{"bits":"7ff"}})", R"({"a":{"bits":"7ff000000000000g"}})",
        R"({"a":{"bits":7}})", R"({"a":{"integers":[],"doubles":[]}})", R"({"a":18446744073709551615})",
        R"({"a":{"integers":[9223372036854775808]}})"}) {
    SCOPED_TRACE(text);
    expect_error<CheckpointError>([&] { checkpoint::state_from_json(json::parse(text)); }, {"'a'"});
  }
  EXPECT_THROW(checkpoint::state_from_json(json::parse("[]")), CheckpointError);
}

}  // namespace
}  // namespace tutti::test::state_json_test
