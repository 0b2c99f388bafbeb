// A thread that runs an engine.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"

namespace hysparse {

class EngineThread {
 public:
  explicit EngineThread(Engine& engine);  // starts; keeps a reference
  ~EngineThread();                        // stop()
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Ends after the running step. Requests stay as they are.
  void stop();
  // What the engine broke on; empty while it runs.
  std::string failure() const;
  // Whether a step ended (or there was nothing to do) within the last `seconds`, and nothing broke.
  bool healthy(double seconds) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hysparse
