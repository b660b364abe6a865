// TorchScript modules made from a source text, which tch does not wrap.

#include <torch/csrc/jit/api/module.h>

#include <exception>
#include <string>

namespace {
thread_local std::string message;
}

extern "C" {

const char* starling_script_error() { return message.c_str(); }

// Writes a module with these constants, whose methods are given as a text. Returns 0, or 1 after leaving
// a message for `starling_script_error`.
int starling_write_script(const char* source, const char* const* names,
                          const at::Tensor* const* tensors, int count, const char* about,
                          const char* path) {
  try {
    torch::jit::Module module("Policy");
    module.register_attribute("training", c10::BoolType::get(), false);
    for (int i = 0; i < count; i++) {
      module.register_parameter(names[i], *tensors[i], /*is_buffer=*/true);
    }
    module.define(source);
    module.save(path, {{"starling.json", about}});
    return 0;
  } catch (const std::exception& error) {
    message = error.what();
    return 1;
  }
}
}
