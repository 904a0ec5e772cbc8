#pragma once
// What is measured without a description of a model: the example GPT on random tokens, the model of `tutti bench
// sync`.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/randint.h>
#include <torch/utils.h>

#include <string>
#include <utility>
#include <vector>

#include "gpt/model.h"

namespace tutti::plan {

struct Example {
  int batch_size = 4;
  int width = 256;
  int layers = 6;
  int context = 64;
  int vocabulary = 4096;
};

/// The options of the example, with their members.
inline std::vector<std::pair<std::string, int Example::*>> example_options() {
  return {{"--batch-size", &Example::batch_size},
          {"--width", &Example::width},
          {"--layers", &Example::layers},
          {"--context", &Example::context},
          {"--vocabulary", &Example::vocabulary}};
}

inline std::vector<std::string> words_of(const Example& example) {
  std::vector<std::string> words;
  for (const auto& [name, member] : example_options()) {
    words.insert(words.end(), {name, std::to_string(example.*member)});
  }
  return words;
}

inline std::string describe(const Example& example) {
  return "GPT of width " + std::to_string(example.width) + ", " + std::to_string(example.layers) + " layers, context " +
         std::to_string(example.context) + ", vocabulary " + std::to_string(example.vocabulary) + ", batches of " +
         std::to_string(example.batch_size) + "; AdamW; one thread a rank";
}

/// Equal on every rank.
inline gpt::Gpt make_model(const Example& example) {
  torch::manual_seed(0);
  return gpt::Gpt(gpt::GptOptions{.vocabulary = example.vocabulary,
                                  .width = example.width,
                                  .layers = example.layers,
                                  .context = example.context,
                                  .learned_positions = false,
                                  .final_norm = false});
}

/// The loss of a new random batch.
inline at::Tensor loss_of(gpt::Gpt& model, const Example& example) {
  const auto tokens = at::randint(example.vocabulary, {example.batch_size, example.context}, at::kLong);
  return gpt::gpt_loss(model, tokens, tokens);
}

}  // namespace tutti::plan
