#pragma once
// A small GPT over bytes: embeds the bytes, applies blocks of causal attention, and scores the next byte.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace gpt {

struct GptOptions {
  std::int64_t vocabulary = 256;
  std::int64_t width = 256;  ///< features per byte; a multiple of `heads`
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t context = 128;  ///< context length in bytes
  std::int64_t feed_forward = 4 * width;
  bool learned_positions = true;
  bool final_norm = true;
};

/// One pre-norm transformer block: attention, then a feed-forward layer, each with a residual connection.
class GptBlockImpl : public torch::nn::Module {
 public:
  explicit GptBlockImpl(const GptOptions& options)
      : heads_(options.heads),
        attention_norm_(register_module("attention_norm", norm(options.width))),
        // One matrix product for queries, keys and values is faster than three products.
        query_key_value_(register_module("query_key_value", torch::nn::Linear(options.width, 3 * options.width))),
        projection_(register_module("projection", torch::nn::Linear(options.width, options.width))),
        feed_forward_norm_(register_module("feed_forward_norm", norm(options.width))),
        expand_(register_module("expand", torch::nn::Linear(options.width, options.feed_forward))),
        contract_(register_module("contract", torch::nn::Linear(options.feed_forward, options.width))) {}

  at::Tensor forward(at::Tensor x) {
    x = x + attend(attention_norm_(x));
    return x + contract_(at::gelu(expand_(feed_forward_norm_(x))));
  }

 private:
  static torch::nn::LayerNorm norm(std::int64_t width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
  }

  at::Tensor attend(const at::Tensor& x) {
    // [batch, time, width] -> [batch, heads, time, width / heads]: views, no copies.
    auto by_head = [this](const at::Tensor& part) { return part.unflatten(-1, {heads_, -1}).transpose(1, 2); };
    const auto parts = query_key_value_(x).chunk(3, -1);
    const auto mixed = at::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]),
                                                        /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
    return projection_(mixed.transpose(1, 2).flatten(2));
  }

  std::int64_t heads_;
  torch::nn::LayerNorm attention_norm_;
  torch::nn::Linear query_key_value_;
  torch::nn::Linear projection_;
  torch::nn::LayerNorm feed_forward_norm_;
  torch::nn::Linear expand_;
  torch::nn::Linear contract_;
};
TORCH_MODULE(GptBlock);

class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptOptions& options)
      : options_(options),
        embedding_(register_module("embedding", torch::nn::Embedding(options.vocabulary, options.width))) {
    if (options.learned_positions) {
      positions_ = register_module("positions", torch::nn::Embedding(options.context, options.width));
    }
    for (std::int64_t i = 0; i < options.layers; ++i) {
      blocks_.push_back(register_module("block_" + std::to_string(i), GptBlock(options)));
    }
    if (options.final_norm) {
      final_norm_ = register_module("final_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})));
    }
    head_ = register_module("head", torch::nn::Linear(options.width, options.vocabulary));
    initialize();
  }

  const GptOptions& options() const { return options_; }

  /// `tokens`: int64 [batch, time], time <= context. Returns the scores of the next token: [batch, time, vocabulary].
  at::Tensor forward(const at::Tensor& tokens) {
    auto x = embedding_(tokens);
    if (positions_) x = x + positions_->weight.narrow(0, 0, tokens.size(1));
    for (auto& block : blocks_) x = block(x);
    if (final_norm_) x = final_norm_(x);
    return head_(x);
  }

 private:
  /// GPT-2's initialization: normal weights, zero biases, and residual projections scaled down by the number of blocks.
  void initialize() {
    const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(options_.layers));
    for (auto& item : named_parameters()) {
      auto& parameter = item.value();
      const auto& name = item.key();
      if (name.find("norm") != std::string::npos) continue;  // already ones and zeros
      if (name.ends_with("bias")) {
        torch::nn::init::zeros_(parameter);
      } else {
        const bool adds = name.ends_with("projection.weight") || name.ends_with("contract.weight");
        torch::nn::init::normal_(parameter, 0.0, adds ? residual : 0.02);
      }
    }
  }

  GptOptions options_;
  torch::nn::Embedding embedding_;
  torch::nn::Embedding positions_{nullptr};
  std::vector<GptBlock> blocks_;
  torch::nn::LayerNorm final_norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Gpt);

/// Mean cross-entropy in nats per token; `targets` are the tokens that follow, shaped as `tokens`.
inline at::Tensor gpt_loss(Gpt& model, const at::Tensor& tokens, const at::Tensor& targets) {
  return at::cross_entropy_loss(model(tokens).flatten(0, 1), targets.flatten());
}

}  // namespace gpt
