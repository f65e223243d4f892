"""What `holdfast.tensorflow` shows, beside its datasets.

hook.py       LogHook: logs from a tf.compat.v1.train.MonitoredTrainingSession
callback.py   LogCallback: logs from a Keras fit()
"""
