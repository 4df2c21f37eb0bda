"""What a verb does, whole: settings to a job, its plan, the build; export and upload.

May import: everything but `commands`.
"""
